"""The files of examples that a task is taught with: read, made to suit it, and found good before the training."""

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from ..artifacts import resolve_path
from ..config import Config, from_dict, to_dict
from ..console import Console
from ..errors import UserError
from ..evaluation.evaluate import is_labeled
from ..tasks import (
    QuestionAnswering,
    Seq2Seq,
    TaskConfig,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from ..tasks.scorers.conlleval import are_span_tags
from ..tasks.seq2seq import Seq2SeqPrediction
from ..tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from .recipe import FinetuneRecipe


class Data(Config, frozen=True):
    train: Annotated[str, "the file to learn from"]
    dev: Annotated[str | None, "the file to be judged on, and to tune thresholds on"] = None
    columns: Annotated[dict[str, str], "what text, text_b, label ... are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False


class Examples(NamedTuple):
    task: TaskConfig  # with what it learns from its files before training
    train: list[Any]
    dev: list[Any]  # to be judged on; none without a dev file


def read_examples(recipe: "FinetuneRecipe", tokenizer: Tokenizer, console: Console) -> Examples:
    """What a recipe of `finetune` learns from and is judged on.

    Sentences without tags and questions without answers are left out: nothing is learnt from or judged by them.
    """
    task = _complete_task(recipe, tokenizer)
    learn, dev = (_read_file(task, name, console) if name else [] for name in (recipe.data.train, recipe.data.dev))
    task = task.fit(learn)
    if recipe.data.dev:
        _check_dev(task, dev, recipe.data.dev)
    return Examples(task, learn, dev)


def _complete_task(recipe: "FinetuneRecipe", tokenizer: Tokenizer) -> TaskConfig:
    """The task with what is said of it elsewhere in the recipe, and by the model."""
    task = recipe.task
    given: dict[str, Any] = {"skip_bad": recipe.data.skip_bad or task.skip_bad}
    if hasattr(task, "columns") and recipe.data.columns:
        given["columns"] = recipe.data.columns
    if recipe.long:
        given["long"] = recipe.long
    if isinstance(task, TextClassification | TextRegression):
        if task.hex and not tokenizer.is_hex:
            raise UserError(f"task.hex=true, but {recipe.model} reads text; `bertsmith tokenizer kind=byte hex=true` begins one "
                           "that reads bytes")  # fmt: skip
        given["hex"] = tokenizer.is_hex
    return _replace_settings(task, given)


def _replace_settings(task: TaskConfig, settings: dict[str, Any]) -> TaskConfig:
    """The task with these settings, refused where it has no such words."""
    kind = task.__struct_config__.tag
    return from_dict(TaskConfig, to_dict(task) | {"kind": kind} | settings, f"task={kind}")  # type: ignore[arg-type]


def _read_file(task: TaskConfig, path: str, console: Console) -> list[Any]:
    rows = task.read(resolve_path(path, "data"))
    found: list[Any] = [one for one in rows if is_labeled(task, one)]
    if rows.num_skipped:
        console.warn(f"{path}: {rows.num_skipped} rows left out, such as: {rows.errors[0]}")
    return found


def _check_dev(task: TaskConfig, dev: list[Any], path: str) -> None:
    """Found wanting now, not after the training."""
    lone = isinstance(task, TextSimilarity) and any(one.score is None for one in dev)
    if not dev or lone:
        raise UserError(f"{path} holds nothing to be judged by: every example needs its {'score' if lone else 'answer'}")
    if isinstance(task, TokenClassification):
        _check_tag_scheme(task, dev)
    elif not isinstance(task, QuestionAnswering):
        task.fit(dev)  # refuses an example without its label
    if isinstance(task, Seq2Seq):
        task.compute_metrics([Seq2SeqPrediction(str(dev[0].target))], dev[:1])  # what judges is installed


def _check_tag_scheme(task: TokenClassification, dev: list[Any]) -> None:
    """A tag that was not learnt is a miss; but beside one that marks no span, entities could not be counted at all."""
    new = {tag for one in dev for tag in one.tags} - set(task.labels)
    odd = {tag for tag in new if are_span_tags(task.labels) and not are_span_tags([*task.labels, tag])}
    for one in dev if odd else []:
        if wrong := [tag for tag in one.tags if tag in odd]:
            raise UserError(f"{one.location}: the tag {wrong[0]!r} is not of the kind that was learnt, such as "
                           f"{task.labels[0]!r}; mend it, or give both files tags of one kind")  # fmt: skip
