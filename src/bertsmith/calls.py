"""Stages as Python functions: `@stage` gives a function with the keys of a recipe as keyword arguments its body."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from .commands import POSITIONAL, load_stage, recipe_type, report_same_names
from .config import Config, RecipeError, from_user, non_default_values
from .console import log_to_stderr
from .cores import sleep_between_operations
from .errors import UserError, explain_missing_torch
from .schema import load_stage_schema

TRAINING_STAGES = ("finetune", "distill", "prune", "share", "quantize", "compress")  # whose `data` may be rows of a program
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Data:
    """The examples of `finetune`: files, or rows that a program has in memory.

    Rows are a data frame, a dictionary of columns, or a list, generator or dataset of dictionaries, with the columns of the
    task's files. A run with rows is resumed, or refused, by their content, as one with files.

    >>> bertsmith.finetune(task="classify", model="mini-en", data=bertsmith.Data(train=df, dev=dev), out="out/mood")

    Args:
        train: training examples
        dev: examples for evaluation, early stopping and thresholds; default: held out of train
        test: examples that are scored once, with the final model
        validation_split: without dev: fraction of the training examples that is held out (default 0.1)
        columns: column names: {"text": NAME, "label": NAME ...}
        encoding: encoding of the files (default utf-8)
        skip_bad: skip invalid rows and count them, instead of stopping
    """

    train: Any
    dev: Any = None
    test: Any = None
    validation_split: float | None = None
    columns: dict[str, str] | None = None
    encoding: str | None = None
    skip_bad: bool = False


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
            plain = _to_plain(values)
            with log_to_stderr(only_if_unconfigured=True), _rows_as_files(name, plain, source) as plain_values:
                return result_type(call_stage(name, plain_values, quiet, source))

        return call  # type: ignore[return-value]

    return decorate


def call_stage(name: str, values: dict[str, Any], quiet: bool, source: str) -> Any:
    """The result of a stage for the values of its recipe. A stage whose command prints its result has `call` beside `run`."""
    try:
        checked = from_user(load_stage_schema(name), values, source)  # errors in keys, before torch is imported
        sleep_between_operations()
        with explain_missing_torch():
            module = load_stage(name)
            recipe = from_user(recipe_type(module, checked), values, source)
            report_same_names(recipe, quiet)
    except RecipeError as error:
        raise RecipeError(f"{error}{_python_hint(str(error))}") from None
    with explain_missing_torch():
        return getattr(module, "call", module.run)(recipe, quiet)


def _has_rows(data: dict[str, Any]) -> bool:
    """Whether one of train, dev and test is not a file."""
    from .tokenization.rows import is_rows

    return any(is_rows(data.get(split)) for split in SPLITS)


@contextmanager
def _rows_as_files(stage: str, values: dict[str, Any], source: str) -> Iterator[dict[str, Any]]:
    """The values with rows (data frames, lists, generators ...) replaced by files, which are removed afterwards."""
    from .tokenization.rows import is_rows, write_rows  # not at `import bertsmith`

    data: Any = values.get("data")
    if not is_rows(data) or (isinstance(data, dict) and stage != "evaluate" and not _has_rows(data)):
        yield values
        return
    if stage in TRAINING_STAGES and not isinstance(data, dict):
        raise UserError(f"{source}: give data=bertsmith.Data(train=ROWS, dev=ROWS), not the rows alone")
    if stage not in (*TRAINING_STAGES, "evaluate"):
        raise UserError(f"{source}: data takes a file; for rows, call bertsmith.load(MODEL)(ROWS)")
    with TemporaryDirectory(prefix="bertsmith-") as name:
        folder = Path(name)
        if stage == "evaluate":
            yield values | {"data": str(write_rows(data, folder, "data"))}
            return
        files = {split: str(write_rows(data[split], folder, f"data.{split}")) for split in SPLITS if is_rows(data.get(split))}
        yield values | {"data": data | files}


def _to_plain(value: Any) -> Any:
    """Configs as dictionaries of the keys that differ from their defaults; keys that are None count as not given."""
    if isinstance(value, Config):
        return non_default_values(value)
    if isinstance(value, Data):
        return {field.name: item for field in fields(value) if (item := getattr(value, field.name)) is not None}
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
