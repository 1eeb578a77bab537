"""`bertsmith pretrain`: a corpus to a pre-trained model, in a run that can be killed and resumed."""

from ..pretraining.run import pretrain as run
from ..pretraining.setup import PretrainRecipe as Recipe

__all__ = ["Recipe", "run"]
