"""`bertsmith share`: an ALBERT-shaped model from a trained one, with shared layers and factorized embeddings."""

from ..compression.sharing.recipe import ShareRecipe as Recipe
from ..compression.sharing.run import share as run

__all__ = ["Recipe", "run"]
