"""`bertsmith race`: every member of the family, on the same text, with the same budget and the same tasks, in one table."""

from ..race.run import RaceRecipe as Recipe
from ..race.run import code
from ..race.run import race as run

__all__ = ["Recipe", "code", "run"]
