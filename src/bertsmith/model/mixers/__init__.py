"""Ways of moving information between tokens. To add one: write its file, then name it in two lines here."""

from .adaptive import Adaptive
from .base import Mixer
from .chunked import Chunked
from .convolution import Convolution
from .dense import Dense
from .hashed import Hashed
from .long_short import LongShort
from .lstm import Lstm
from .recurrent import Recurrent
from .window import Window

MixerConfig = Dense | Lstm | Convolution | Recurrent | Adaptive | Window | Hashed | Chunked | LongShort

__all__ = [
    "Adaptive", "Chunked", "Convolution", "Dense", "Hashed", "LongShort", "Lstm", "Mixer", "MixerConfig", "Recurrent", "Window",
]  # fmt: skip
