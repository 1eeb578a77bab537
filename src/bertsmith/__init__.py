"""bertsmith: pre-train, fine-tune, evaluate and run BERT and its family. The public functions are those of `bertsmith.api`."""

from .api import *  # noqa: F403
from .api import __all__ as __all__

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
