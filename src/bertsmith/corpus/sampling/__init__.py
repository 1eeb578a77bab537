"""Samplers: how a corpus is divided into training samples. To add one, write its class and list it in the unions below."""

from .base import SampleIndex, Sampler
from .sentence_pairs import NextSentence, PairStyle, SentenceOrder
from .windows import DocSentences, FullSentences, Streams, Windows

SamplerConfig = Windows | DocSentences | FullSentences | Streams
PairSamplerConfig = NextSentence | SentenceOrder

__all__ = [
    "DocSentences",
    "FullSentences",
    "NextSentence",
    "PairSamplerConfig",
    "PairStyle",
    "SampleIndex",
    "Sampler",
    "SamplerConfig",
    "SentenceOrder",
    "Streams",
    "Windows",
]  # fmt: skip
