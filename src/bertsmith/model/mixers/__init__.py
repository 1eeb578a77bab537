"""Ways of moving information between tokens. To add one: write its file, then name it in two lines here."""

from .adaptive_span import Adaptive
from .attention import Dense
from .base import Mixer
from .cnn import Convolution
from .lite_transformer import LongShort
from .longformer.layer import Window
from .reformer.chunked import Chunked
from .reformer.layer import Hashed
from .rnn import Lstm
from .transformer_xl import Recurrent

MixerConfig = Dense | Lstm | Convolution | Recurrent | Adaptive | Window | Hashed | Chunked | LongShort

__all__ = [
    "Adaptive", "Chunked", "Convolution", "Dense", "Hashed", "LongShort", "Lstm", "Mixer", "MixerConfig", "Recurrent", "Window",
]  # fmt: skip
