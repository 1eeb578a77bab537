"""Which label a text or a pair of texts has, or which of many labels hold at once."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import Positive, Share
from ..errors import BadInput
from ..metrics import calibration
from ..metrics import scores as scores_
from .base import Answer, Encoded, Scores, averaged
from .table_rows import Row
from .text_pairs import Labelled, OfTexts


@dataclass(frozen=True)
class Text(Labelled[str]):
    """A text, or a pair, and what is known of it; labels of a task with many are parted by |."""


@dataclass(frozen=True)
class Label(Answer):
    label: str
    scores: dict[str, float]  # how probable each label is


@dataclass(frozen=True)
class Labels(Answer):
    labels: list[str]  # those at least as probable as the task's threshold
    scores: dict[str, float]


class Classify(OfTexts[Text], frozen=True):
    labels: Annotated[tuple[str, ...], "the labels, in the order of the scores; learnt from data.train if none are given"] = ()
    many: Annotated[bool, "several labels may hold at once, or none; in files they are parted by |"] = False
    threshold: Annotated[Share, "many: how probable a label must be to hold; tuned on data.dev"] = 0.5
    temperature: Annotated[Positive, "what scores are divided by, that probabilities may be believed; fitted on data.dev"] = 1.0
    positive: Annotated[str | None, "the one of two labels that f1 is about"] = None
    weights: Annotated[
        Literal["balanced"] | dict[str, float] | None, "what a label counts in the loss, by name; balanced: rare ones more"
    ] = None

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def fitted(self, examples: Sequence[Text]) -> "Classify":
        """With every label of the examples, sorted, their weights and guide tokens; what the recipe gave stays."""
        found = Counter(label for example in examples for label in self._labels_of(example))
        task = msgspec.structs.replace(self, labels=self.labels or tuple(sorted(found)), guides=self.met(examples))
        if len(task.labels) < 2 - self.many:
            raise BadInput(f"{_files(examples)}: every label is {task.labels}; there is nothing to tell apart")
        task._known(found, _files(examples))
        task._known([self.positive] if self.positive else [], "task.positive")
        task._known(self.weights if isinstance(self.weights, dict) else [], "task.weights")
        if self.positive and (task.outputs != 2 or self.many):
            raise BadInput(f"task.positive={self.positive} is for one of two labels; here are {task.outputs}: leave it out")
        return task._balanced(found, len(examples)) if self.weights == "balanced" else task

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Text]) -> list[Label | Labels]:
        """Scores of windows are averaged first."""
        rows = self.probabilities(averaged(scores, encoded, len(examples)))
        return [self._answer(row) for row in rows]

    def probabilities(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """(examples, labels), from as many scores: softmax, or with many a sigmoid each, of scores / temperature."""
        scores = np.asarray(scores, np.float64) / self.temperature
        if self.many:
            return 0.5 * (1 + np.tanh(0.5 * scores))  # no overflow either way
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    def judge(self, answers: Sequence[Label | Labels], examples: Sequence[Text]) -> dict[str, float]:
        """With many, accuracy is the share with exactly the right labels; `f1` is there if one of two is `positive`."""
        if self.many:
            given, true = self.held(answers, examples)
            judged = {"accuracy": scores_.exact, "f1_macro": scores_.f1_macro_many, "f1_micro": scores_.f1_micro_many}
            return {name: float(metric(given, true)) for name, metric in judged.items()}
        chosen = [one.label for one in answers if isinstance(one, Label)]
        wanted = [self._label(one) for one in examples]
        names = ("accuracy", "f1_macro", "f1_micro", "matthews")
        found = {name: float(scores_.METRICS[name](chosen, wanted)) for name in names}
        return found | ({"f1": float(scores_.f1(chosen, wanted, self.positive))} if self.positive else {})

    def held(self, answers: Sequence[Any], examples: Sequence[Text]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """With many: the labels that were answered and those that hold, (examples, labels) each."""
        return self._given(answers), self._truths(examples) > 0

    def confusion(self, answers: Sequence[Label], examples: Sequence[Text]) -> NDArray[np.int64]:
        """(labels, labels): true ones in rows, answers in columns."""
        return scores_.confusion([one.label for one in answers], [self._label(one) for one in examples], self.labels)

    def calibrated(self, scores: NDArray[Any], examples: Sequence[Text]) -> "Classify":
        """With the temperature that makes these examples' labels likeliest, from a row of scores each.

        Unchanged where every answer is right: nothing then says how sure is too sure.
        """
        rows = np.asarray(scores, np.float64)
        truths = (self._truths(examples) > 0).astype(np.int64).ravel() if self.many else self._numbers(examples)
        if self.many:  # a sigmoid is a softmax against 0
            rows = np.stack([np.zeros(rows.size), rows.ravel()], -1)
        if (rows.argmax(-1) == truths).all():
            return self
        return msgspec.structs.replace(self, temperature=calibration.temperature(rows, truths))

    def tuned(self, scores: NDArray[Any], examples: Sequence[Text]) -> "Classify":
        """With many: the threshold of the best micro F1 on these examples, from a row of scores each.

        Unchanged otherwise, and where no label holds. `base.averaged` makes a row an example of the scores of windows.
        """
        if not self.many or not (truths := self._truths(examples) > 0).any():
            return self
        return msgspec.structs.replace(self, threshold=_best_cut(self.probabilities(scores), truths))

    def class_weights(self) -> NDArray[np.float32] | None:
        """(labels,) what a label counts in the loss (with many: what its holding counts, its not holding counts 1)."""
        if self.weights == "balanced":
            raise BadInput("balanced weights are learnt from examples: call fitted(examples) first")
        table = self.weights
        return None if table is None else np.array([table.get(label, 1.0) for label in self.labels], np.float32)

    def _example(self, row: Row) -> Text:
        return Text(**self._texts(row), label=self._written(row))

    def _targets(self, examples: Sequence[Text]) -> NDArray[Any]:
        """A number, or with many a row of 0 and 1."""
        return self._truths(examples) if self.many else self._numbers(examples)

    def _written(self, row: Row) -> str | None:
        """The label as the file has it, as text."""
        value = row.get("label")
        if self.many and isinstance(value, list) and all(isinstance(one, str | int) for one in value):
            value = "|".join(one if isinstance(one, str) else json.dumps(one) for one in value)
        if isinstance(value, list | dict):
            raise row.bad(f"label is {json.dumps(value)[:40]}, not one label (task.many=true takes a list of them)")
        if value is not None and not isinstance(value, str):
            value = json.dumps(value)
        if value == "" and not self.many:
            raise row.bad("label is empty")
        return value

    def _labels_of(self, example: Text) -> list[str]:
        label = self._label(example)
        return list(dict.fromkeys(filter(None, map(str.strip, label.split("|"))))) if self.many else [label]

    def _known(self, labels: Iterable[str], place: str) -> None:
        for label in labels:
            if label not in self.labels:
                near = get_close_matches(label, self.labels, n=1)
                known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.labels)}"
                raise BadInput(f"{place}: {label!r} is not a label of this task; {known}")

    def _numbers(self, examples: Sequence[Text]) -> NDArray[np.int64]:
        place = {label: number for number, label in enumerate(self.labels)}
        for example in examples:
            if self._label(example) not in place:
                self._known([self._label(example)], example.place)
        return np.array([place[self._label(example)] for example in examples], np.int64)

    def _truths(self, examples: Sequence[Text]) -> NDArray[np.float32]:
        """(examples, labels) of 0 and 1."""
        table = np.zeros((len(examples), len(self.labels)), np.float32)
        for row, example in zip(table, examples, strict=True):
            self._known(labels := self._labels_of(example), example.place)
            row[[self.labels.index(label) for label in labels]] = 1
        return table

    def _given(self, answers: Sequence[Any]) -> NDArray[np.bool_]:
        return np.array([[label in answer.labels for label in self.labels] for answer in answers], bool)

    def _answer(self, row: NDArray[np.float64]) -> Label | Labels:
        scores = dict(zip(self.labels, row.tolist(), strict=True))
        if self.many:
            return Labels([label for label, score in scores.items() if score >= self.threshold], scores)
        return Label(self.labels[int(row.argmax())], scores)

    def _balanced(self, found: Counter[str], count: int) -> "Classify":
        """Every label counts the same in all (with many: as much where it holds as where it does not); an unseen one 1."""
        weights = dict.fromkeys(self.labels, 1.0)
        for label, times in found.items():
            weights[label] = (count - times) / times or 1.0 if self.many else count / (len(self.labels) * times)
        return msgspec.structs.replace(self, weights=weights)


def _best_cut(probabilities: NDArray[np.float64], truths: NDArray[np.bool_]) -> float:
    """Half-way between the last probability that is taken and the first that is not, where micro F1 is best."""
    order = np.argsort(-probabilities, axis=None, kind="stable")
    values, hits = probabilities.ravel()[order], truths.ravel()[order]
    ends = np.flatnonzero(np.append(values[1:] < values[:-1], True))  # a cut falls only between different values
    right, taken = np.cumsum(hits)[ends], ends + 1
    best = ends[int(np.argmax(2 * right / (taken + truths.sum())))]
    below = values[best + 1] if best + 1 < len(values) else 0.0
    middle = (values[best] + below) / 2
    return float(middle if middle > below else values[best])


def _files(examples: Sequence[Text]) -> str:
    return ", ".join(sorted({one.source for one in examples if one.source})) or "the examples"
