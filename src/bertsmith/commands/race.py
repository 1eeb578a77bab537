"""`bertsmith race`: pre-train several models on one corpus with one compute budget and compare them on the same tasks."""

from ..racing.run import RaceRecipe as Recipe
from ..racing.run import code
from ..racing.run import race as run

__all__ = ["Recipe", "code", "run"]
