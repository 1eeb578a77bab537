"""Token mixers: attention variants, recurrent layers and convolutions. To add one, write its file and list it here."""

from .adaptive_span import AdaptiveSpan
from .attention import Attention
from .base import Mixer
from .cnn import Cnn
from .lite_transformer import LiteTransformer
from .longformer.layer import Longformer
from .reformer.chunked import ReformerChunked
from .reformer.layer import Reformer
from .rnn import Lstm
from .transformer_xl import TransformerXL

MixerConfig = Attention | Lstm | Cnn | TransformerXL | AdaptiveSpan | Longformer | Reformer | ReformerChunked | LiteTransformer

__all__ = [
    "AdaptiveSpan",
    "Attention",
    "Cnn",
    "LiteTransformer",
    "Longformer",
    "Lstm",
    "Mixer",
    "MixerConfig",
    "Reformer",
    "ReformerChunked",
    "TransformerXL",
]  # fmt: skip
