"""Ways of writing an answer to what an encoder read. To add one: write its file, then name it in two lines here."""

from .base import Decoder
from .rnn import Recurrent
from .transformer import Attention

DecoderConfig = Attention | Recurrent

__all__ = ["Attention", "Decoder", "DecoderConfig", "Recurrent"]
