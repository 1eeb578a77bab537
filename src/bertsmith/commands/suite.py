"""`bertsmith suite`: fine-tune models on many tasks with several seeds, in one table."""

from ..finetuning.suite import SuiteRecipe as Recipe
from ..finetuning.suite import code
from ..finetuning.suite import run_suite as run

__all__ = ["Recipe", "code", "run"]
