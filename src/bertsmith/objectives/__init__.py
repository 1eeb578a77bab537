"""What models learn from. To add one: write its file, then name it in two lines here."""

from .base import PretrainObjective
from .bilm import BiLM
from .clm import CausalLM
from .glove import Glove
from .mlm import MaskedLM, SentencePairMLM
from .rtd import ReplacedTokenDetection
from .word2vec import Cbow, SkipGram

ObjectiveConfig = SentencePairMLM | MaskedLM | ReplacedTokenDetection | CausalLM | BiLM | Glove | SkipGram | Cbow

__all__ = [
    "BiLM",
    "CausalLM",
    "Cbow",
    "Glove",
    "MaskedLM",
    "ObjectiveConfig",
    "PretrainObjective",
    "ReplacedTokenDetection",
    "SentencePairMLM",
    "SkipGram",
]
