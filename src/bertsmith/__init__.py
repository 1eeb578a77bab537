"""bertsmith: pre-train, fine-tune, evaluate and run BERT and its family. The public functions are those of `bertsmith.api`."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import (
        convert_long,
        doctor,
        embed,
        evaluate,
        export,
        finetune,
        import_model,
        load,
        models,
        plan,
        predict,
        prepare,
        pretrain,
        race,
        show,
        suite,
        train_tokenizer,
    )


__version__ = "0.1.0"
__all__ = [
    "convert_long",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "import_model",
    "load",
    "models",
    "plan",
    "predict",
    "prepare",
    "pretrain",
    "race",
    "show",
    "suite",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    """Import the public functions on first use, so that `import bertsmith` stays fast."""
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module 'bertsmith' has no attribute {name!r}")


class _Package(ModuleType):
    """Keeps `bertsmith.predict`, `.evaluate` etc. functions when a submodule of the same name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
