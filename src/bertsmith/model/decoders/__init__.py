"""Decoders of sequence-to-sequence models. To add one: write its file, then register it in two lines here."""

from .base import Decoder
from .rnn import RNNDecoderConfig
from .transformer import TransformerDecoderConfig

DecoderConfig = TransformerDecoderConfig | RNNDecoderConfig

__all__ = ["Decoder", "DecoderConfig", "RNNDecoderConfig", "TransformerDecoderConfig"]
