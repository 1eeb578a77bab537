"""Ways of moving information between tokens. To add one: write its file, then name it in two lines here."""

from .base import Mixer
from .dense import Dense

MixerConfig = Dense

__all__ = ["Dense", "Mixer", "MixerConfig"]
