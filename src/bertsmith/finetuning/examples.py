"""Read and check the labelled examples of a fine-tuning run, before training starts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec

from ..artifacts import resolve_path
from ..config import Config, Probability, from_dict, to_dict
from ..console import Console
from ..errors import UserError
from ..evaluation.evaluate import warn_of_unknown_labels
from ..rng import Stream, permutation
from ..tasks import TaskConfig
from ..tasks.table_rows import ExampleReader
from ..tokenization.tables import LineReader, name_file, normalize_encoding
from ..tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .recipe import FinetuneRecipe

MAX_VALIDATION = 2000  # examples held out of the training file
MAX_GENERATED = 200  # the same for task=generate, whose evaluation is slow
ExampleT = TypeVar("ExampleT")


class Data(Config, frozen=True):
    """Files of labelled examples."""

    train: Annotated[str, "training file"]
    dev: Annotated[str | None, "dev file, for evaluation, early stopping and thresholds; default: held out"] = None
    validation_split: Annotated[
        Probability, "without dev: fraction of the training examples that is held out, 2,000 at most; 0: none"
    ] = 0.1
    test: Annotated[str | None, "test file, scored once with the final model; nothing is chosen by it"] = None
    columns: Annotated[dict[str, str], "column names: { text = NAME, text_b = NAME, label = NAME ... }"] = msgspec.field(
        default_factory=dict
    )
    encoding: Annotated[str, "encoding of the files: utf-8 (with or without byte order mark), gb18030, latin-1 ..."] = "utf-8"
    skip_bad: Annotated[bool, "skip invalid rows and count them, instead of stopping"] = False


class Examples(NamedTuple):
    """A task with its training and dev examples."""

    task: TaskConfig  # fitted: with labels and other values taken from the training file
    train: list[Any]
    dev: list[Any]  # empty without a dev file
    test: list[Any]  # empty without a test file


def read_examples(recipe: "FinetuneRecipe", tokenizer: Tokenizer, console: Console) -> Examples:
    """Training, dev and test examples of a `finetune` recipe, with the task fitted to the training examples.

    Unlabelled examples (sentences without tags, questions without answers) are left out.
    """
    task = _complete_task(recipe, tokenizer)
    data, encoding = recipe.data, recipe.data.encoding
    train, dev, test = (_read_file(task, path, encoding, console) if path else [] for path in (data.train, data.dev, data.test))
    task = task.fit(train)
    for path, examples in ((data.dev, dev), (data.test, test)):
        if path:
            _check_scorable(task, examples, path, console)
    if not data.dev:
        train, dev = _hold_out(task, train, recipe, console)
    return Examples(task, train, dev, test)


def _hold_out(task: TaskConfig, examples: list[Any], recipe: "FinetuneRecipe", console: Console) -> tuple[list[Any], list[Any]]:
    """(training, held-out) examples, without a dev file; none without scores (positive pairs)."""
    fraction = recipe.data.validation_split
    try:
        task.check_scorable(examples, recipe.data.train)
    except UserError:
        return examples, []
    train, dev = split_validation(examples, fraction, MAX_GENERATED if task.head_type == "lm" else MAX_VALIDATION)
    if dev:
        console.info(f"validation: {len(dev):,} of {len(examples):,} rows of {name_file(recipe.data.train)} are held out; set "
                     "data.dev for a file of your own, or data.validation_split=0 to train on all")  # fmt: skip
    return train, dev


def split_validation(examples: list[ExampleT], fraction: float, most: int) -> tuple[list[ExampleT], list[ExampleT]]:
    """(training, held-out) examples: `fraction` of them at random, `most` at most; the same for every seed.

    Questions about one passage are held out together.
    """
    groups: dict[Any, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(getattr(example, "context", None) or i, []).append(i)
    members, size = list(groups.values()), min(round(fraction * len(examples)), most)
    held_out = set[int]()
    for group in permutation(len(members), 0, Stream.VALIDATION_SPLIT):
        if len(held_out) + len(members[group]) <= size:
            held_out.update(members[group])
    return (
        [example for i, example in enumerate(examples) if i not in held_out],
        [example for i, example in enumerate(examples) if i in held_out],
    )


def _complete_task(recipe: "FinetuneRecipe", tokenizer: Tokenizer) -> TaskConfig:
    """The task with settings that come from elsewhere in the recipe or from the tokenizer."""
    task = with_labels_of_file(recipe.task, recipe.data.encoding)
    settings: dict[str, Any] = {"skip_bad": recipe.data.skip_bad or task.skip_bad}
    if hasattr(task, "columns") and recipe.data.columns:
        settings["columns"] = recipe.data.columns
    if recipe.long_text:
        settings["long_text"] = recipe.long_text
    if "hex" in task.__struct_fields__:
        if getattr(task, "hex", False) and not tokenizer.is_hex:
            raise UserError(f"task.hex=true needs a model with a tokenizer of hex bytes, unlike {recipe.model}; train one "
                           "with `bertsmith tokenizer kind=byte hex=true`")  # fmt: skip
        settings["hex"] = tokenizer.is_hex
    return _replace_settings(task, settings)


def with_labels_of_file(task: TaskConfig, encoding: str) -> TaskConfig:
    """The task with the labels that a file lists, if `labels` is the name of one."""
    labels: tuple[str, ...] = tuple(getattr(task, "labels", ()))
    if len(labels) != 1 or not (path := Path(labels[0]).expanduser()).is_file():
        return task
    return _replace_settings(task, {"labels": read_labels(path, encoding)})


def read_labels(path: Path, encoding: str) -> list[str]:
    """The labels of a file, one a line, in its order; an empty line or a label that occurs twice is an error."""
    lines: dict[str, int] = {}
    for line, text in (reader := LineReader(path, encoding)):
        if problem := reader.find_decoding_error(text):
            raise UserError(f"task.labels: {path}, line {line:,}: {problem}")
        if not (label := text.strip()):
            raise UserError(f"task.labels: {path}, line {line:,} is empty; give one label a line")
        if label in lines:
            raise UserError(f"task.labels: {path}, line {line:,}: {label!r} is on line {lines[label]:,} already; remove one")
        lines[label] = line
    return list(lines)


def _replace_settings(task: TaskConfig, settings: dict[str, Any]) -> TaskConfig:
    """The task with these settings; UserError if it does not have one of them."""
    kind = task.__struct_config__.tag
    return from_dict(TaskConfig, to_dict(task) | {"kind": kind} | settings, f"task={kind}")  # type: ignore[arg-type]


def _read_file(task: TaskConfig, path: str, encoding: str, console: Console) -> list[Any]:
    rows: ExampleReader[Any] = task.read(resolve_path(path, "data"), normalize_encoding(encoding, "data.encoding"))
    examples: list[Any] = [example for example in rows if task.is_labeled(example)]
    if rows.num_skipped:
        console.warn(rows.describe_skipped())
    return examples


def _check_scorable(task: TaskConfig, examples: list[Any], path: str, console: Console) -> None:
    """Errors in the dev or test examples are raised here, before training; labels that data.train lacks are reported."""
    if not examples:
        raise UserError(f"{path} cannot be used for evaluation: every example needs a label")
    task.check_scorable(examples, path)
    warn_of_unknown_labels(task, examples, console)
