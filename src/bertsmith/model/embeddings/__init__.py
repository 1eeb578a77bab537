"""Ways of making vectors of tokens. To add one: write its file, then name it in two lines here."""

from .adaptive import ByRarity
from .base import Front
from .char_cnn import Characters
from .fasttext import Subwords
from .ngram import Grams

FrontConfig = Characters | Grams | Subwords | ByRarity

__all__ = ["ByRarity", "Characters", "Front", "FrontConfig", "Grams", "Subwords"]
