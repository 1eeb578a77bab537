"""What models learn from. To add one: write its file, then name it in two lines here."""

from .base import Objective
from .both_ways import BothWays
from .causal import Causal
from .glove import Glove
from .masked import Masked
from .neighbours import Cbow, SkipGram
from .pairs import Pairs
from .replaced import Replaced

ObjectiveConfig = Pairs | Masked | Replaced | Causal | BothWays | Glove | SkipGram | Cbow

__all__ = ["BothWays", "Causal", "Cbow", "Glove", "Masked", "Objective", "ObjectiveConfig", "Pairs", "Replaced", "SkipGram"]
