"""Training objectives. To add one for pre-training: write its file, then import it and add it to ObjectiveConfig here."""

from .base import PretrainObjective
from .bilm import BiLM
from .clm import CausalLM
from .glove import Glove
from .mlm import MaskedLM, NextSentenceMLM, SentenceOrderMLM, SentencePairMLM
from .rtd import ReplacedTokenDetection
from .word2vec import Cbow, SkipGram

ObjectiveConfig = (
    NextSentenceMLM | SentenceOrderMLM | MaskedLM | ReplacedTokenDetection | CausalLM | BiLM | Glove | SkipGram | Cbow
)

__all__ = [
    "BiLM",
    "CausalLM",
    "Cbow",
    "Glove",
    "MaskedLM",
    "NextSentenceMLM",
    "ObjectiveConfig",
    "PretrainObjective",
    "ReplacedTokenDetection",
    "SentenceOrderMLM",
    "SentencePairMLM",
    "SkipGram",
]
