"""`bertsmith tokenizer`: text files to a tokenizer folder, new or extended, with a report of how well it fits them."""

from ..tokenization.train_tokenizer import Recipe, run

__all__ = ["Recipe", "run"]
