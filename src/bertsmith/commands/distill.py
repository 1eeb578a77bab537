"""`bertsmith distill`: train a smaller model on the outputs and inner states of a teacher, in a run that can be resumed."""

from ..compression.distillation.recipe import DistillRecipe as Recipe
from ..compression.distillation.run import distill as run

__all__ = ["Recipe", "run"]
