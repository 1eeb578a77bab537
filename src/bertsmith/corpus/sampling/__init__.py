"""Ways of reading a corpus as samples. To add one: write its file, then name it in two lines here."""

from .base import SampleIndex, Sampler
from .sentence_pairs import NextSentence, SentenceOrder
from .windows import DocSentences, FullSentences, Streams, Windows

SamplerConfig = Windows | DocSentences | FullSentences | Streams
PairSamplerConfig = NextSentence | SentenceOrder

__all__ = [
    "DocSentences",
    "FullSentences",
    "NextSentence",
    "PairSamplerConfig",
    "SampleIndex",
    "Sampler",
    "SamplerConfig",
    "SentenceOrder",
    "Streams",
    "Windows",
]  # fmt: skip
