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

from ..config import Fraction, PosFloat
from ..errors import UserError
from ..metrics import calibration
from ..metrics import scores as scores_
from .base import EncodedExamples, ModelOutputs, Prediction, average_windows
from .table_rows import ExampleRow
from .text_pairs import LabeledExample, TextPairTask


@dataclass(frozen=True)
class ClassificationExample(LabeledExample[str]):
    """A text, or a pair, and what is known of it; labels of a task with many are parted by |."""


@dataclass(frozen=True)
class ClassificationPrediction(Prediction):
    label: str
    scores: dict[str, float]  # how probable each label is


@dataclass(frozen=True)
class MultiLabelPrediction(Prediction):
    labels: list[str]  # those at least as probable as the task's threshold
    scores: dict[str, float]


class TextClassification(TextPairTask[ClassificationExample], frozen=True, tag="classify"):
    labels: Annotated[tuple[str, ...], "the labels, in the order of the scores; learnt from data.train if none are given"] = ()
    many: Annotated[bool, "several labels may hold at once, or none; in files they are parted by |"] = False
    threshold: Annotated[Fraction, "many: how probable a label must be to hold; tuned on data.dev"] = 0.5
    temperature: Annotated[PosFloat, "what scores are divided by, that probabilities may be believed; fitted on data.dev"] = 1.0
    positive: Annotated[str | None, "the one of two labels that f1 is about"] = None
    weights: Annotated[
        Literal["balanced"] | dict[str, float] | None, "what a label counts in the loss, by name; balanced: rare ones more"
    ] = None

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    def fit(self, examples: Sequence[ClassificationExample]) -> "TextClassification":
        """With every label of the examples, sorted, their weights and guide tokens; what the recipe gave stays."""
        found = Counter(label for example in examples for label in self._split_labels(example))
        task = msgspec.structs.replace(
            self, labels=self.labels or tuple(sorted(found)), guides=self.collect_special_tokens(examples)
        )
        if len(task.labels) < 2 - self.many:
            raise UserError(f"{_source_files(examples)}: every label is {task.labels}; there is nothing to tell apart")
        task._check_labels(found, _source_files(examples))
        task._check_labels([self.positive] if self.positive else [], "task.positive")
        task._check_labels(self.weights if isinstance(self.weights, dict) else [], "task.weights")
        if self.positive and (task.num_outputs != 2 or self.many):
            raise UserError(
                f"task.positive={self.positive} is for one of two labels; here are {task.num_outputs}: leave it out"
            )
        return task._with_balanced_weights(found, len(examples)) if self.weights == "balanced" else task

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[ClassificationExample]
    ) -> list[ClassificationPrediction | MultiLabelPrediction]:
        """Scores of windows are averaged first."""
        rows = self.probabilities(average_windows(outputs, encoded, len(examples)))
        return [self._to_prediction(row) for row in rows]

    def probabilities(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """(examples, labels), from as many scores: softmax, or with many a sigmoid each, of scores / temperature."""
        logits = np.asarray(logits, np.float64) / self.temperature
        if self.many:
            return 0.5 * (1 + np.tanh(0.5 * logits))  # no overflow either way
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    def compute_metrics(
        self, predictions: Sequence[ClassificationPrediction | MultiLabelPrediction], examples: Sequence[ClassificationExample]
    ) -> dict[str, float]:
        """With many, accuracy is the share with exactly the right labels; `f1` is there if one of two is `positive`."""
        if self.many:
            given, true = self.label_matrices(predictions, examples)
            judged = {"accuracy": scores_.exact, "f1_macro": scores_.f1_macro_many, "f1_micro": scores_.f1_micro_many}
            return {name: float(metric(given, true)) for name, metric in judged.items()}
        chosen = [one.label for one in predictions if isinstance(one, ClassificationPrediction)]
        wanted = [self._require_label(one) for one in examples]
        names = ("accuracy", "f1_macro", "f1_micro", "matthews")
        found = {name: float(scores_.METRICS[name](chosen, wanted)) for name in names}
        return found | ({"f1": float(scores_.f1(chosen, wanted, self.positive))} if self.positive else {})

    def label_matrices(
        self, predictions: Sequence[Any], examples: Sequence[ClassificationExample]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """With many: the labels that were answered and those that hold, (examples, labels) each."""
        return self._predicted_matrix(predictions), self._multi_hot_labels(examples) > 0

    def confusion_matrix(
        self, predictions: Sequence[ClassificationPrediction], examples: Sequence[ClassificationExample]
    ) -> NDArray[np.int64]:
        """(labels, labels): true ones in rows, answers in columns."""
        return scores_.confusion_matrix(
            [one.label for one in predictions], [self._require_label(one) for one in examples], self.labels
        )

    def calibrate(self, logits: NDArray[Any], examples: Sequence[ClassificationExample]) -> "TextClassification":
        """With the temperature that makes these examples' labels likeliest, from a row of scores each.

        Unchanged where every answer is right: nothing then says how sure is too sure.
        """
        rows = np.asarray(logits, np.float64)
        truths = (self._multi_hot_labels(examples) > 0).astype(np.int64).ravel() if self.many else self._label_ids(examples)
        if self.many:  # a sigmoid is a softmax against 0
            rows = np.stack([np.zeros(rows.size), rows.ravel()], -1)
        if (rows.argmax(-1) == truths).all():
            return self
        return msgspec.structs.replace(self, temperature=calibration.fit_temperature(rows, truths))

    def tune_threshold(self, logits: NDArray[Any], examples: Sequence[ClassificationExample]) -> "TextClassification":
        """With many: the threshold of the best micro F1 on these examples, from a row of scores each.

        Unchanged otherwise, and where no label holds. `base.averaged` makes a row an example of the scores of windows.
        """
        if not self.many or not (truths := self._multi_hot_labels(examples) > 0).any():
            return self
        return msgspec.structs.replace(self, threshold=_best_threshold(self.probabilities(logits), truths))

    def class_weights(self) -> NDArray[np.float32] | None:
        """(labels,) what a label counts in the loss (with many: what its holding counts, its not holding counts 1)."""
        if self.weights == "balanced":
            raise UserError("balanced weights are learnt from examples: call fitted(examples) first")
        table = self.weights
        return None if table is None else np.array([table.get(label, 1.0) for label in self.labels], np.float32)

    def _parse_row(self, row: ExampleRow) -> ClassificationExample:
        return ClassificationExample(**self._text_fields(row), label=self._read_label(row))

    def _targets(self, examples: Sequence[ClassificationExample]) -> NDArray[Any]:
        """A number, or with many a row of 0 and 1."""
        return self._multi_hot_labels(examples) if self.many else self._label_ids(examples)

    def _read_label(self, row: ExampleRow) -> str | None:
        """The label as the file has it, as text."""
        value = row.get("label")
        if self.many and isinstance(value, list) and all(isinstance(one, str | int) for one in value):
            value = "|".join(one if isinstance(one, str) else json.dumps(one) for one in value)
        if isinstance(value, list | dict):
            raise row.error(f"label is {json.dumps(value)[:40]}, not one label (task.many=true takes a list of them)")
        if value is not None and not isinstance(value, str):
            value = json.dumps(value)
        if value == "" and not self.many:
            raise row.error("label is empty")
        return value

    def _split_labels(self, example: ClassificationExample) -> list[str]:
        label = self._require_label(example)
        return list(dict.fromkeys(filter(None, map(str.strip, label.split("|"))))) if self.many else [label]

    def _check_labels(self, labels: Iterable[str], location: str) -> None:
        for label in labels:
            if label not in self.labels:
                near = get_close_matches(label, self.labels, n=1)
                known = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.labels)}"
                raise UserError(f"{location}: {label!r} is not a label of this task; {known}")

    def _label_ids(self, examples: Sequence[ClassificationExample]) -> NDArray[np.int64]:
        place = {label: number for number, label in enumerate(self.labels)}
        for example in examples:
            if self._require_label(example) not in place:
                self._check_labels([self._require_label(example)], example.location)
        return np.array([place[self._require_label(example)] for example in examples], np.int64)

    def _multi_hot_labels(self, examples: Sequence[ClassificationExample]) -> NDArray[np.float32]:
        """(examples, labels) of 0 and 1."""
        table = np.zeros((len(examples), len(self.labels)), np.float32)
        for row, example in zip(table, examples, strict=True):
            self._check_labels(labels := self._split_labels(example), example.location)
            row[[self.labels.index(label) for label in labels]] = 1
        return table

    def _predicted_matrix(self, predictions: Sequence[Any]) -> NDArray[np.bool_]:
        return np.array([[label in answer.labels for label in self.labels] for answer in predictions], bool)

    def _to_prediction(self, probabilities: NDArray[np.float64]) -> ClassificationPrediction | MultiLabelPrediction:
        scores = dict(zip(self.labels, probabilities.tolist(), strict=True))
        if self.many:
            return MultiLabelPrediction([label for label, score in scores.items() if score >= self.threshold], scores)
        return ClassificationPrediction(self.labels[int(probabilities.argmax())], scores)

    def _with_balanced_weights(self, label_counts: Counter[str], num_examples: int) -> "TextClassification":
        """Every label counts the same in all (with many: as much where it holds as where it does not); an unseen one 1."""
        weights = dict.fromkeys(self.labels, 1.0)
        for label, times in label_counts.items():
            weights[label] = (num_examples - times) / times or 1.0 if self.many else num_examples / (len(self.labels) * times)
        return msgspec.structs.replace(self, weights=weights)


def _best_threshold(probabilities: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Half-way between the last probability that is taken and the first that is not, where micro F1 is best."""
    order = np.argsort(-probabilities, axis=None, kind="stable")
    values, hits = probabilities.ravel()[order], labels.ravel()[order]
    ends = np.flatnonzero(np.append(values[1:] < values[:-1], True))  # a cut falls only between different values
    right, taken = np.cumsum(hits)[ends], ends + 1
    best = ends[int(np.argmax(2 * right / (taken + labels.sum())))]
    below = values[best + 1] if best + 1 < len(values) else 0.0
    middle = (values[best] + below) / 2
    return float(middle if middle > below else values[best])


def _source_files(examples: Sequence[ClassificationExample]) -> str:
    return ", ".join(sorted({one.source for one in examples if one.source})) or "the examples"
