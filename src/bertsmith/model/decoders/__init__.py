"""Ways of writing an answer to what an encoder read. To add one: write its file, then name it in two lines here."""

from .attention import Attention
from .base import Decoder
from .recurrent import Recurrent

DecoderConfig = Attention | Recurrent

__all__ = ["Attention", "Decoder", "DecoderConfig", "Recurrent"]
