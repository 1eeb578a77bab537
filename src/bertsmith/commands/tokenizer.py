"""`bertsmith tokenizer`: train a tokenizer on text files, or extend one, with a report of how well it fits them."""

from ..tokenization.train_tokenizer import Recipe, run

__all__ = ["Recipe", "run"]
