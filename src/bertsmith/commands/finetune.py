"""`bertsmith finetune`: a pre-trained model and examples to a model that does a task, with its scores on the dev file."""

from ..finetuning.recipe import FinetuneRecipe as Recipe
from ..finetuning.run import finetune as run

__all__ = ["Recipe", "run"]
