"""Stages as Python functions: `@stage` gives a function with the keys of a recipe as keyword arguments its body."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from .commands import POSITIONAL, load_stage, recipe_type, report_same_names
from .config import Config, RecipeError, from_user, non_default_values
from .console import log_to_stderr
from .errors import explain_missing_torch
from .schema import load_stage_schema

F = TypeVar("F", bound=Callable[..., Any])


def stage(name: str, result_type: Callable[[Any], Any]) -> Callable[[F], F]:
    """Decorator of the declarations in `bertsmith.api`: run stage `name` with the given arguments.

    The declaration only carries the signature and the docstring. Arguments that are not keys of the stage are refused with
    the closest key, also if they are another library's name for it.
    """

    def decorate(declaration: F) -> F:
        @wraps(declaration)
        def call(*args: Any, quiet: bool = False, **values: Any) -> Any:
            if args:
                keys = ", ".join(f"{key}=..." for key in POSITIONAL.get(name, ("out",)))
                raise TypeError(
                    f"bertsmith.{declaration.__name__}() takes keyword arguments only: {declaration.__name__}({keys})"
                )
            source = f"bertsmith.{declaration.__name__}"
            with log_to_stderr(only_if_unconfigured=True):
                return result_type(call_stage(name, _to_plain(values), quiet, source))

        return call  # type: ignore[return-value]

    return decorate


def call_stage(name: str, values: dict[str, Any], quiet: bool, source: str) -> Any:
    """The result of a stage for the values of its recipe. A stage whose command prints its result has `call` beside `run`."""
    try:
        checked = from_user(load_stage_schema(name), values, source)  # errors in keys, before torch is imported
        with explain_missing_torch():
            module = load_stage(name)
            recipe = from_user(recipe_type(module, checked), values, source)
            report_same_names(recipe, quiet)
    except RecipeError as error:
        raise RecipeError(f"{error}{_python_hint(str(error))}") from None
    with explain_missing_torch():
        return getattr(module, "call", module.run)(recipe, quiet)


def _to_plain(value: Any) -> Any:
    """Configs as dictionaries of the keys that differ from their defaults; keys that are None count as not given."""
    if isinstance(value, Config):
        return non_default_values(value)
    if isinstance(value, dict):
        return {name: _to_plain(item) for name, item in value.items() if item is not None}
    return value


def _python_hint(message: str) -> str:
    """How to write a suggested dotted key in Python: ` (train={"epochs": ...})`."""
    suggestion = message.partition("did you mean '")[2].partition("'")[0] or message.partition("; for example ")[2]
    path, _, value = suggestion.partition("=")
    table, dot, key = path.partition(".")
    value = _to_python(value) if value else "..."
    nested = "".join(f'{{"{name}": ' for name in key.split(".")) + value + "}" * (key.count(".") + 1)
    return f" Write {table}={nested}." if dot else ""


def _to_python(word: str) -> str:
    """A value that a message suggests, as Python writes it."""
    if word in ("true", "false"):
        return word.capitalize()
    return word if word == "..." or re.fullmatch(r"[-+0-9.e]+", word) else f'"{word}"'
