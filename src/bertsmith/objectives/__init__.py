"""Training objectives. To add one for pre-training: write its file, then import it and add it to ObjectiveConfig here."""

from ..errors import UserError
from .base import PretrainObjective
from .bilm import BiLM
from .clm import CausalLM
from .glove import Glove
from .mlm import MaskedLM, NextSentenceMLM, SentenceOrderMLM, SentencePairMLM
from .rtd import ReplacedTokenDetection
from .word2vec import Cbow, SkipGram, WordVectorObjective

ObjectiveConfig = (
    NextSentenceMLM | SentenceOrderMLM | MaskedLM | ReplacedTokenDetection | CausalLM | BiLM | Glove | SkipGram | Cbow
)


def word_vector_objective(objective: ObjectiveConfig) -> WordVectorObjective | None:
    """The objective, if it trains word vectors: the one place that tells them from the objectives of a network."""
    return objective if isinstance(objective, WordVectorObjective) else None


def require_network(objective: ObjectiveConfig) -> PretrainObjective:
    """The objective; raises a UserError for word vectors, which are trained without a network."""
    if isinstance(objective, WordVectorObjective):
        raise UserError(f"objective={objective.__struct_config__.tag} trains word vectors and has no batches of sequences; "
                       "use an objective that trains a network, such as objective=mlm")  # fmt: skip
    return objective


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
    "WordVectorObjective",
    "require_network",
    "word_vector_objective",
]
