"""`bertsmith compress`: search over distillation, pruning and quantization, and keep the smallest model that passes a gate."""

from ..compression.search.recipe import CompressRecipe as Recipe
from ..compression.search.run import compress as run

__all__ = ["Recipe", "run"]
