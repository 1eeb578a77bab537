"""`bertsmith prepare`: tokenize text files into a corpus folder with a data card."""

from ..corpus.prepare import Recipe, run

__all__ = ["Recipe", "run"]
