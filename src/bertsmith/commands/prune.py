"""`bertsmith prune`: remove heads, neurons, layers or tokens from a model, or set weights to zero, while it is trained."""

from ..compression.pruning.recipe import PruneRecipe as Recipe
from ..compression.pruning.run import prune as run

__all__ = ["Recipe", "run"]
