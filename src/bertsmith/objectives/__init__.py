"""What models learn from. To add one: write its file, then name it in two lines here."""

from .base import Objective
from .masked import Masked
from .pairs import Pairs

ObjectiveConfig = Pairs | Masked

__all__ = ["Masked", "Objective", "ObjectiveConfig", "Pairs"]
