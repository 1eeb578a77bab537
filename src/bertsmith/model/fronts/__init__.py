"""Ways of making vectors of tokens. To add one: write its file, then name it in two lines here."""

from .base import Front
from .characters import Characters
from .grams import Grams
from .rarity import ByRarity
from .subwords import Subwords

FrontConfig = Characters | Grams | Subwords | ByRarity

__all__ = ["ByRarity", "Characters", "Front", "FrontConfig", "Grams", "Subwords"]
