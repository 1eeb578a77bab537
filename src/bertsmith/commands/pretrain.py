"""`bertsmith pretrain`: pre-train a model, or word vectors, on a corpus, in a run that can be resumed."""

from ..pretraining.run import pretrain as run
from ..pretraining.setup import PretrainRecipe as Recipe

__all__ = ["Recipe", "run"]
