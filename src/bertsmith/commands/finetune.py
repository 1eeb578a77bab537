"""`bertsmith finetune`: fine-tune a pre-trained model on labelled examples, and score it on the dev file."""

from ..finetuning.recipe import FinetuneRecipe as Recipe
from ..finetuning.run import finetune as run

__all__ = ["Recipe", "run"]
