"""Ways of reading a corpus as samples. To add one: write its file, then name it in two lines here."""

from .base import Plan, View
from .sentence_pairs import NextSentence, SentenceOrder
from .windows import DocSentences, FullSentences, Streams, Windows

ViewConfig = Windows | DocSentences | FullSentences | Streams
PairConfig = NextSentence | SentenceOrder

__all__ = [
    "DocSentences", "FullSentences", "NextSentence", "PairConfig", "Plan", "SentenceOrder", "Streams", "View", "ViewConfig",
    "Windows",
]  # fmt: skip
