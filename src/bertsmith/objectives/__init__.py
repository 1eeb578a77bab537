"""What models learn from. To add one: write its file, then name it in two lines here."""

from .base import Objective
from .bilm import BothWays
from .clm import Causal
from .glove import Glove
from .mlm import Masked, Pairs
from .rtd import Replaced
from .word2vec import Cbow, SkipGram

ObjectiveConfig = Pairs | Masked | Replaced | Causal | BothWays | Glove | SkipGram | Cbow

__all__ = ["BothWays", "Causal", "Cbow", "Glove", "Masked", "Objective", "ObjectiveConfig", "Pairs", "Replaced", "SkipGram"]
