"""Ways of choosing what to hide. To add one: write its file, then name it in two lines here."""

from .base import Masked, Words, hidden
from .runs import Ngrams, Spans
from .single import Pieces, WholeWords

MaskConfig = Pieces | WholeWords | Spans | Ngrams

__all__ = ["MaskConfig", "Masked", "Ngrams", "Pieces", "Spans", "WholeWords", "Words", "hidden"]
