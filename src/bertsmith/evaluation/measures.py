"""What each score of a task is computed from, a row an example, so that any choice of examples can be scored."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..metrics import intervals, scores
from ..metrics.intervals import Interval
from ..metrics.scores import Array, Metric
from ..tasks import Answering, Choose, Classify, Generate, Regress, Similar, Tag, TaskConfig
from ..tasks.scorers.conlleval import entities, marks_spans

SEED = 0  # of the resamples: the same examples and answers have the same interval, whoever asks
SURE = 1.959964**2  # the square of the normal distribution's 97.5th percentile


@dataclass(frozen=True)
class Measure:
    """A score by its metric, from an array of answers and one of truths whose rows are examples."""

    metric: Metric
    answers: Array
    truths: Array
    falls: bool = False  # less is better

    @property
    def score(self) -> float:
        return float(self.metric(self.answers, self.truths))

    def of(self, chosen: NDArray[Any]) -> "Measure":
        """The same of some examples, by their numbers or by a mask."""
        return replace(self, answers=self.answers[chosen], truths=self.truths[chosen])

    def around(self, samples: int = 1000) -> Interval:
        """With its bootstrap interval of 95%.

        Where all examples are right (or all wrong) every resample is too, which would claim certainty; Wilson's bound
        for as many examples is taken there. A single example has no interval.
        """
        found, count = intervals.interval(self.metric, self.answers, self.truths, SEED, samples), len(self.truths)
        if found.low < found.high:
            return found
        edges = {1.0: (count / (count + SURE), 1.0), 0.0: (0.0, SURE / (count + SURE))}
        low, high = edges.get(found.value, (math.nan, math.nan)) if not self.falls else (math.nan, math.nan)
        return Interval(found.value, low, high)


def measures(task: TaskConfig, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, Measure]:
    """The scores that `task.judge` gives, as far as they are of examples: not thresholds, nor the best one could have."""
    return _OF[type(task)](task, answers, examples)


def headline(task: TaskConfig) -> str:
    """The name of the score by which models of this task are told apart."""
    if isinstance(task, Tag):
        return "f1" if marks_spans(task.labels) else "accuracy"
    if isinstance(task, Classify) and task.many:
        return "f1_micro"
    return {Answering: "f1", Regress: "pearson", Similar: "spearman", Generate: "bleu"}.get(type(task), "accuracy")


def deciding(task: TaskConfig, best: str | None = None) -> str:
    """The name of the score by which one run of a task is chosen before another: the headline, if no other is asked for."""
    if best and best not in names(task):
        raise BadInput(f"best={best} is not a score of this task, which has {', '.join(names(task))}")
    return best or headline(task)


def names(task: TaskConfig) -> list[str]:
    """The scores that models of a task can be compared by, known before there is any answer; its labels must be."""
    if isinstance(task, Classify):
        one = ["matthews"] * (not task.many) + ["f1"] * (task.positive is not None)
        return ["accuracy", "f1_macro", "f1_micro", *one]
    if isinstance(task, Tag):
        spans = ["f1", "precision", "recall", *(f"f1.{kind}" for kind in task.types)] if marks_spans(task.labels) else []
        return [*spans, "accuracy"]
    if isinstance(task, Answering):
        sides = [f"{side}_{name}" for side in ("has_answer", "no_answer") for name in ("exact", "f1")]
        return ["exact", "f1", *(sides if task.no_answer else ())]
    if isinstance(task, Generate):
        return ["bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact", "length"]
    return ["accuracy"] if isinstance(task, Choose) else ["pearson", "spearman"]


def sliced(task: TaskConfig, found: dict[str, Measure]) -> tuple[str, Measure]:
    """The score, of those found, by which parts of the examples are compared, and its name.

    For numbers that is how far off they are: within a part where truths are alike, a correlation says little.
    """
    name = headline(task)
    if isinstance(task, Regress):
        apart = np.abs(found[name].answers - found[name].truths)
        return "mean error", Measure(scores.mean, apart, np.zeros(len(apart)), falls=True)
    return name, found[name]


def right(task: TaskConfig, answers: Sequence[Any], examples: Sequence[Any]) -> NDArray[np.bool_] | None:
    """Which examples are answered without a fault; None where answers are numbers, which are near or far."""
    pairs = list(zip(answers, examples, strict=True))
    if isinstance(task, Classify) and task.many:
        given, true = task.held(answers, examples)
        return (given == true).all(-1)
    if isinstance(task, Answering):
        return task.each(answers, examples)[0] == 1
    if isinstance(task, Generate):
        return task.each(answers, examples)["exact"] == 1
    tests: dict[type, Callable[[Any, Any], bool]] = {
        Classify: lambda said, one: said.label == one.label,
        Choose: lambda said, one: said.choice == one.label,
        Tag: lambda said, one: said.tags == one.tags,
    }
    return np.array([tests[type(task)](*pair) for pair in pairs], bool) if type(task) in tests else None


def _classify(task: Classify, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, Measure]:
    if task.many:
        sides = task.held(answers, examples)
        many = {"accuracy": scores.exact, "f1_macro": scores.f1_macro_many, "f1_micro": scores.f1_micro_many}
        return {name: Measure(metric, *sides) for name, metric in many.items()}
    place = {label: number for number, label in enumerate(task.labels)}
    said, true = np.array([place[one.label] for one in answers]), np.array([place[one.label] for one in examples])
    found = {name: scores.METRICS[name] for name in ("accuracy", "f1_macro", "f1_micro", "matthews")}
    if task.positive:
        found["f1"] = partial(scores.f1, positive=place[task.positive])
    return {name: Measure(metric, said, true) for name, metric in found.items()}


def _numbers(
    task: Regress | Similar, answers: Sequence[Any], examples: Sequence[Any], names: tuple[str, str], field: str, truth: str
) -> dict[str, Measure]:
    said, true = (np.array([getattr(o, n) for o in some]) for some, n in ((answers, field), (examples, truth)))
    return {name: Measure(scores.METRICS[name], said, true) for name in names}


def _choose(task: Choose, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, Measure]:
    said, true = np.array([one.choice for one in answers]), np.array([one.label for one in examples])
    return {"accuracy": Measure(scores.accuracy, said, true)}


def _answer(task: Answering, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, Measure]:
    exact, f1 = task.each(answers, examples)
    found = {name: Measure(scores.mean, values, np.zeros(len(values))) for name, values in (("exact", exact), ("f1", f1))}
    if task.no_answer:
        there = np.array([bool(one.answers) for one in examples])
        for kind, chosen in (("has_answer", there), ("no_answer", ~there)):
            if chosen.any():
                found |= {f"{kind}_exact": _share(exact * chosen, chosen), f"{kind}_f1": _share(f1 * chosen, chosen)}
    return found


def _generate(task: Generate, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, Measure]:
    """But for chrF, whose counts sacreBLEU does not tell."""
    counts = scores.bleu_counts(*task.texts(answers, examples), task.words)
    zeros = np.zeros(len(counts))
    means = {name: Measure(scores.mean, values, zeros) for name, values in task.each(answers, examples).items()}
    return {"bleu": Measure(scores.bleu, counts, zeros), **means}


def _tag(task: Tag, answers: Sequence[Any], examples: Sequence[Any]) -> dict[str, Measure]:
    """Entities are counted in each sentence once: a thousand resamples then only add."""
    pairs = [(said.tags, one.tags) for said, one in zip(answers, examples, strict=True)]
    hits = np.array([sum(a == b for a, b in zip(*pair, strict=True)) for pair in pairs])
    accuracy = _share(hits, np.array([len(one.tokens) for one in examples]))
    if not marks_spans(sorted({*chain.from_iterable(gold for _, gold in pairs), *task.labels})):
        return {"accuracy": accuracy}
    spans = [(set(entities(said)), set(entities(gold))) for said, gold in pairs]
    kinds = sorted({entity.type for pair in spans for entity in chain(*pair)} | set(task.types))
    all_, *each = (_counted(spans, kind) for kind in (None, *kinds))
    found = {"f1": _f1(*all_), "precision": _share(all_[0], all_[1]), "recall": _share(all_[0], all_[2])}
    found |= {f"f1.{kind}": _f1(*counts) for kind, counts in zip(kinds, each, strict=True) if kind}
    return {**found, "accuracy": accuracy}


def _counted(spans: Sequence[tuple[set[Any], set[Any]]], kind: str | None) -> tuple[Array, Array, Array]:
    """Right, found and there in each sentence, of one type of entity or of all."""
    kept = [tuple({e for e in side if kind in (None, e.type)} for side in pair) for pair in spans]
    table = np.array([(len(said & gold), len(said), len(gold)) for said, gold in kept], np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _f1(hits: Array, found: Array, there: Array) -> Measure:
    return Measure(scores.f1_counted, np.stack([hits, found], -1), np.stack([there, there], -1))


def _share(part: Array, whole: Array) -> Measure:
    return Measure(scores.ratio, np.stack([part, whole], -1), np.zeros((len(part), 2)))


_OF: dict[type, Callable[..., dict[str, Measure]]] = {
    Classify: _classify,
    Regress: partial(_numbers, names=("pearson", "spearman"), field="value", truth="label"),
    Similar: partial(_numbers, names=("spearman", "pearson"), field="score", truth="score"),
    Tag: _tag,
    Answering: _answer,
    Choose: _choose,
    Generate: _generate,
}
