"""`bertsmith race`: pre-train several models on one corpus with one compute budget and compare them on the same tasks."""

from ..race.run import RaceRecipe as Recipe
from ..race.run import code
from ..race.run import race as run

__all__ = ["Recipe", "code", "run"]
