"""Ways of writing an answer to what an encoder read. To add one: write its file, then name it in two lines here."""

from .base import Decoder
from .rnn import RNNDecoderConfig
from .transformer import TransformerDecoderConfig

DecoderConfig = TransformerDecoderConfig | RNNDecoderConfig

__all__ = ["Decoder", "DecoderConfig", "RNNDecoderConfig", "TransformerDecoderConfig"]
