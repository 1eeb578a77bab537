"""A model held against examples whose answers are known: what it says, its scores, and how sure those are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..inference.predictor import Predictor
from ..metrics.intervals import Interval
from ..tasks import Answering, Classify, Tag, TaskConfig
from ..tasks.base import averaged
from .measures import Measure, measures


@dataclass(frozen=True)
class Judged:
    """What came of it; the intervals are computed when somebody asks."""

    task: TaskConfig  # with what was tuned
    examples: list[Any]  # those whose answers are known
    answers: list[Any]
    scores: dict[str, float]
    raw: NDArray[np.float64] | None = None  # classify: (examples, labels), before temperature and softmax

    @cached_property
    def measures(self) -> dict[str, Measure]:
        return measures(self.task, self.answers, self.examples)

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """Of every score that is of examples (a threshold is not), with 95% bounds."""
        return {name: measure.around() for name, measure in self.measures.items()}

    @property
    def card(self) -> dict[str, Any]:
        """What a folder remembers: {"metrics": {"accuracy": {"value", "low", "high"}, ...}, "threshold", "temperature"}."""
        found = {name: {"value": one.value, "low": one.low, "high": one.high} for name, one in self.intervals.items()}
        tuned = {name: getattr(self.task, name) for name in ("threshold", "temperature") if hasattr(self.task, name)}
        return {"metrics": found | {n: {"value": v} for n, v in self.scores.items() if n not in found}, **tuned}


def judged(predictor: Predictor, examples: Sequence[Any], tune: bool = False) -> Judged:
    """The model's answers to these examples and their scores; `tune` fits temperature and threshold to them first.

    Sentences without tags and questions without answers are not judged; a text without its label is refused.
    """
    task, every = predictor.taught(), list(examples)
    encoded = task.encode(every, predictor.tokenizer, predictor.length)
    scores, raw = predictor.scores(encoded), None
    if isinstance(task, Classify):
        raw = averaged(scores, encoded, len(every))
        task = task.calibrated(raw, every).tuned(raw, every) if tune else task
    if tune and isinstance(task, Answering):
        task = task.tuned(task.decode(scores, encoded, every), every)
    answers: list[Any] = task.decode(scores, encoded, every)
    found = task.judge(answers, every)
    kept = [number for number, one in enumerate(every) if known(task, one)]
    return Judged(task, [every[i] for i in kept], [answers[i] for i in kept], found, raw)


def known(task: TaskConfig, example: Any) -> bool:
    """Whether it may be learnt from and judged by: a sentence without tags and a question without answers may not.

    Of other tasks every example may: one without its label is refused by the task itself.
    """
    field = {Tag: "tags", Answering: "answers"}.get(type(task))
    return field is None or getattr(example, field) is not None
