"""bertsmith: pre-train, fine-tune, evaluate and run BERT and its family. The public functions are those of `bertsmith.api`."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import *  # noqa: F403
    from .api import __all__ as __all__

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The public functions and the modules, imported when first used: the command line handles signals before its imports."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "__all__" and find_spec(f"{__name__}.{name}"):
        return import_module(f".{name}", __name__)
    api = import_module(".api", __name__)
    if name != "__all__" and name not in api.__all__:
        from .synonyms import explain_module_name

        raise AttributeError(explain_module_name(name, api.__all__))
    value = globals()[name] = getattr(api, name)
    return value


def __dir__() -> list[str]:
    return [*import_module(".api", __name__).__all__, "__version__"]
