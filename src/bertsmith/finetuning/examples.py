"""The files of examples that a task is taught with: read, made to suit it, and found good before the training."""

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from ..artifacts import named
from ..config import Config, parse, plain
from ..console import Screen
from ..errors import BadInput
from ..evaluation.evaluate import known
from ..tasks import Answering, Classify, Generate, Regress, Similar, Tag, TaskConfig
from ..tasks.scorers.conlleval import marks_spans
from ..tasks.seq2seq import Reply
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
    learn: list[Any]
    dev: list[Any]  # to be judged on; none without a dev file


def examples_of(recipe: "FinetuneRecipe", tokenizer: Tokenizer, screen: Screen) -> Examples:
    """What a recipe of `finetune` learns from and is judged on.

    Sentences without tags and questions without answers are left out: nothing is learnt from or judged by them.
    """
    task = _told(recipe, tokenizer)
    learn, dev = (_read(task, name, screen) if name else [] for name in (recipe.data.train, recipe.data.dev))
    task = task.fitted(learn)
    if recipe.data.dev:
        _judgeable(task, dev, recipe.data.dev)
    return Examples(task, learn, dev)


def _told(recipe: "FinetuneRecipe", tokenizer: Tokenizer) -> TaskConfig:
    """The task with what is said of it elsewhere in the recipe, and by the model."""
    task = recipe.task
    given: dict[str, Any] = {"skip_bad": recipe.data.skip_bad or task.skip_bad}
    if hasattr(task, "columns") and recipe.data.columns:
        given["columns"] = recipe.data.columns
    if recipe.long:
        given["long"] = recipe.long
    if isinstance(task, Classify | Regress):
        if task.hex and not tokenizer.hex:
            raise BadInput(f"task.hex=true, but {recipe.model} reads text; `bertsmith tokenizer kind=byte hex=true` begins one "
                           "that reads bytes")  # fmt: skip
        given["hex"] = tokenizer.hex
    return _with(task, given)


def _with(task: TaskConfig, given: dict[str, Any]) -> TaskConfig:
    """The task with these settings, refused where it has no such words."""
    kind = task.__struct_config__.tag
    return parse(TaskConfig, plain(task) | {"kind": kind} | given, f"task={kind}")  # type: ignore[arg-type]


def _read(task: TaskConfig, name: str, screen: Screen) -> list[Any]:
    rows = task.read(named(name, "data"))
    found: list[Any] = [one for one in rows if known(task, one)]
    if rows.skipped:
        screen.warn(f"{name}: {rows.skipped} rows left out, such as: {rows.faults[0]}")
    return found


def _judgeable(task: TaskConfig, dev: list[Any], place: str) -> None:
    """Found wanting now, not after the training."""
    lone = isinstance(task, Similar) and any(one.score is None for one in dev)
    if not dev or lone:
        raise BadInput(f"{place} holds nothing to be judged by: every example needs its {'score' if lone else 'answer'}")
    if isinstance(task, Tag):
        _of_a_kind(task, dev)
    elif not isinstance(task, Answering):
        task.fitted(dev)  # refuses an example without its label
    if isinstance(task, Generate):
        task.judge([Reply(str(dev[0].target))], dev[:1])  # what judges is installed


def _of_a_kind(task: Tag, dev: list[Any]) -> None:
    """A tag that was not learnt is a miss; but beside one that marks no span, entities could not be counted at all."""
    new = {tag for one in dev for tag in one.tags} - set(task.labels)
    odd = {tag for tag in new if marks_spans(task.labels) and not marks_spans([*task.labels, tag])}
    for one in dev if odd else []:
        if wrong := [tag for tag in one.tags if tag in odd]:
            raise BadInput(f"{one.place}: the tag {wrong[0]!r} is not of the kind that was learnt, such as "
                           f"{task.labels[0]!r}; mend it, or give both files tags of one kind")  # fmt: skip
