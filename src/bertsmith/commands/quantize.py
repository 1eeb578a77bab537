"""`bertsmith quantize`: linear layers that compute in int8, and embedding tables of 8 or 4 bits."""

from ..compression.quantization.recipe import QuantizeRecipe as Recipe
from ..compression.quantization.run import quantize as run

__all__ = ["Recipe", "run"]
