"""bertsmith: the whole life of a BERT in one package."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["evaluate", "export", "finetune", "import_model", "load", "prepare", "pretrain", "show", "train_tokenizer"]

if TYPE_CHECKING:
    from .api import evaluate, export, finetune, import_model, load, prepare, pretrain, show, train_tokenizer


def __getattr__(name: str) -> Any:
    """Names are fetched when they are used, so that `import bertsmith` is quick."""
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module 'bertsmith' has no attribute {name!r}")
