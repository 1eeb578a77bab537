"""Text classification: one label for a text or a pair of texts, or several labels at once (multi-label)."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import Fraction, PosFloat
from ..errors import UserError
from ..metrics import calibration
from ..metrics import scores as scores_
from ..metrics.results import MetricResult
from ..tokenization.tokenizer import Tokenizer
from .base import Confidences, EncodedExamples, LossKind, ModelOutputs, Prediction, unknown_label_error
from .mistakes import Mistake, nll, text_spans
from .scorers.conlleval import MatchCounts
from .sequences import average_windows
from .slicing import MAX_LABELS, SliceMasks, group_masks
from .table_rows import ExampleRow
from .text_pairs import LabeledExample, TextPairTask

UNKNOWN_LABEL = -100  # label id of an example of dev or test whose label data.train lacks; ignored by the loss


@dataclass(frozen=True)
class ClassificationExample(LabeledExample[str]):
    """A text or a pair of texts and its label, if known; the labels of a multi-label task are separated by |."""


@dataclass(frozen=True)
class ClassificationPrediction(Prediction):
    """The most probable label. `scores` are softmax probabilities after temperature scaling; they sum to 1."""

    label: str
    scores: dict[str, float]  # probability of each label, in the order of the task's labels

    @property
    def score(self) -> float:
        """Probability of the label."""
        return self.scores[self.label]

    def to_answer(self, top_k: int | None = None) -> dict[str, Any]:
        """`{"label": "positive", "score": 0.98, "scores": {"negative": 0.02, "positive": 0.98}}`; see `top_scores`."""
        return {"label": self.label, "score": self.score, "scores": top_scores(self.scores, top_k)}


@dataclass(frozen=True)
class MultiLabelPrediction(Prediction):
    """All labels whose probability reaches the task's threshold. `scores` are sigmoids, one per label, independent."""

    labels: list[str]  # in the order of the task's labels
    scores: dict[str, float]

    def to_answer(self, top_k: int | None = None) -> dict[str, Any]:
        """`{"labels": [{"label": "sports", "score": 0.9}], "scores": {...}}`, the most probable label first."""
        ranked = sorted(self.labels, key=lambda label: -self.scores[label])
        labels = [{"label": label, "score": self.scores[label]} for label in ranked]
        return {"labels": labels, "scores": top_scores(self.scores, top_k)}


def top_scores(scores: dict[str, float], top_k: int | None) -> dict[str, float]:
    """All scores in the order of the labels, or the `top_k` highest, highest first."""
    return scores if top_k is None else dict(sorted(scores.items(), key=lambda item: -item[1])[:top_k])


class TextClassification(TextPairTask[ClassificationExample], frozen=True, tag="classify"):
    labels: Annotated[
        tuple[str, ...], "class labels in the order of the logits, or a file with one a line; by default sorted, of data.train"
    ] = ()
    multi_label: Annotated[bool, "multi-label classification: any number of labels per text, separated by | in files"] = False
    threshold: Annotated[
        Fraction, "multi_label: probability from which a label is predicted (set by training, on data.dev)"
    ] = 0.5
    temperature: Annotated[PosFloat, "temperature scaling of the logits, for calibration (set by training, on data.dev)"] = 1.0
    positive: Annotated[str | None, "binary classification: the positive label, for which f1 is computed"] = None
    class_weights: Annotated[
        Literal["balanced"] | dict[str, float] | None,
        "loss weight of each label; balanced: inversely proportional to its frequency",
    ] = None

    mistake_order: ClassVar[str] = "those whose gold label has the lowest probability"

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    @property
    def loss(self) -> LossKind:
        return "binary_cross_entropy" if self.multi_label else "cross_entropy"

    @property
    def metric_names(self) -> list[str]:
        single_label = ["matthews"] * (not self.multi_label) + ["f1"] * (self.positive is not None)
        return ["accuracy", "f1_macro", "f1_micro", *single_label]

    @property
    def primary_metric(self) -> str:
        return "f1_micro" if self.multi_label else "accuracy"

    def fit(self, examples: Sequence[ClassificationExample]) -> "TextClassification":
        """With the sorted labels of the examples, class weights and special tokens; values set in the recipe are kept."""
        label_counts = Counter(label for example in examples for label in self._split_labels(example))
        task = msgspec.structs.replace(
            self, labels=self.labels or tuple(sorted(label_counts)), special_tokens=self.collect_special_tokens(examples)
        )
        if len(task.labels) < 2 - self.multi_label:
            raise UserError(f"{_source_files(examples)}: all examples have the label {', '.join(task.labels)}; "
                           "a classifier needs at least two labels")  # fmt: skip
        task._check_labels(label_counts, _source_files(examples))
        task._check_labels([self.positive] if self.positive else [], "task.positive")
        task._check_labels(self.class_weights if isinstance(self.class_weights, dict) else [], "task.class_weights")
        if self.positive and (task.num_outputs != 2 or self.multi_label):
            raise UserError(
                f"task.positive={self.positive} is for binary classification, and this task has {task.num_outputs} labels; "
                "leave it out"
            )
        return task._with_balanced_weights(label_counts, len(examples)) if self.class_weights == "balanced" else task

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[ClassificationExample]
    ) -> list[ClassificationPrediction | MultiLabelPrediction]:
        """Logits are averaged over windows first."""
        return self._predict(average_windows(outputs, encoded, len(examples)))

    def probabilities(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """(examples, labels): softmax(logits / temperature), or a sigmoid per label if multi-label."""
        logits = np.asarray(logits, np.float64) / self.temperature
        if self.multi_label:
            return 0.5 * (1 + np.tanh(0.5 * logits))  # sigmoid without overflow
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    def compute_metric_results(
        self, predictions: Sequence[Any], examples: Sequence[ClassificationExample]
    ) -> dict[str, MetricResult]:
        """accuracy (multi-label: subset accuracy), f1_macro, f1_micro, matthews; `f1` if `positive` is set."""
        if self.multi_label:
            matrices = self.label_matrices(predictions, examples)
            multi_label = {
                "accuracy": scores_.subset_accuracy,
                "f1_macro": scores_.f1_macro_multi_label,
                "f1_micro": scores_.f1_micro_multi_label,
            }
            return {name: MetricResult(metric, *matrices) for name, metric in multi_label.items()}
        label2id = {label: i for i, label in enumerate([*self.labels, *self.find_unknown_labels(examples)])}
        predicted_ids = np.array([label2id[prediction.label] for prediction in predictions])
        gold_ids = np.array([label2id[self._require_label(example)] for example in examples])
        metrics = {name: scores_.METRICS[name] for name in ("accuracy", "f1_macro", "f1_micro", "matthews")}
        if self.positive:
            metrics["f1"] = partial(scores_.f1, positive=label2id[self.positive])
        return {name: MetricResult(metric, predicted_ids, gold_ids) for name, metric in metrics.items()}

    def find_correct(self, predictions: Sequence[Any], examples: Sequence[ClassificationExample]) -> NDArray[np.bool_]:
        if self.multi_label:
            predicted, gold = self.label_matrices(predictions, examples)
            return (predicted == gold).all(-1)
        return np.array([p.label == example.label for p, example in zip(predictions, examples, strict=True)], bool)

    def find_mistakes(self, predictions: Sequence[Any], examples: Sequence[ClassificationExample]) -> list[Mistake]:
        mistakes = []
        for prediction, example in zip(predictions, examples, strict=True):
            gold, scores, label = set(self._split_labels(example)), prediction.scores, self._require_label(example)
            if self.multi_label:
                wrong, predicted = gold.symmetric_difference(prediction.labels), " | ".join(prediction.labels)
                loss = sum(nll(scores[name] if name in gold else 1 - scores[name]) for name in self.labels)
                confidence = max((abs(scores.get(name, 0.0) - (name in gold)) for name in wrong), default=None)
            else:
                wrong, predicted = {prediction.label} - gold, prediction.label
                loss, confidence = nll(scores.get(label, 0.0)), prediction.score
            if wrong:
                gold_text, predicted = label or "no label", predicted or "no label"
                texts = text_spans(example.texts)
                mistakes.append(Mistake("label", example.location, gold_text, predicted, confidence, loss, texts))
        return mistakes

    def label_pairs(
        self, predictions: Sequence[Any], examples: Sequence[ClassificationExample]
    ) -> tuple[list[str], list[str], list[str]] | None:
        """None if multi-label."""
        if self.multi_label:
            return None
        labels = [*self.labels, *self.find_unknown_labels(examples)]
        return [p.label for p in predictions], [self._require_label(example) for example in examples], labels

    def label_counts(self, predictions: Sequence[Any], examples: Sequence[ClassificationExample]) -> dict[str, MatchCounts]:
        if not self.multi_label:
            return super().label_counts(predictions, examples)
        predicted, gold = self.label_matrices(predictions, examples)
        table = zip((predicted & gold).sum(0), predicted.sum(0), gold.sum(0), strict=True)
        labels = [*self.labels, *self.find_unknown_labels(examples)]
        return {label: MatchCounts(*map(int, row)) for label, row in zip(labels, table, strict=True)}

    def majority_outputs(self, examples: Sequence[ClassificationExample]) -> NDArray[np.float64] | None:
        """None if multi-label."""
        return None if self.multi_label else log_frequencies(self.labels, [self._require_label(e) for e in examples])

    def confidences(self, predictions: Sequence[Any], examples: Sequence[ClassificationExample]) -> Confidences:
        """In multi-label tasks every (example, label) pair counts as one binary prediction."""
        probs = np.array([list(prediction.scores.values()) for prediction in predictions])
        if self.multi_label:
            gold = self._multi_hot_labels(examples) > 0
            return Confidences(probs.ravel(), gold.ravel(), np.where(gold, probs, 1 - probs).ravel())
        label_ids = self._label_ids(examples)
        gold_probs = np.where(label_ids >= 0, probs[np.arange(len(probs)), np.maximum(label_ids, 0)], 0.0)
        return Confidences(probs.max(-1), probs.argmax(-1) == label_ids, gold_probs)

    def example_logits(self, outputs: ModelOutputs, encoded: EncodedExamples, num_examples: int) -> NDArray[np.float64]:
        return average_windows(outputs, encoded, num_examples)

    def uncalibrated_predictions(self, logits: NDArray[np.float64]) -> list[ClassificationPrediction | MultiLabelPrediction]:
        return msgspec.structs.replace(self, temperature=1.0)._predict(logits)

    def tune(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[ClassificationExample]
    ) -> "TextClassification":
        """With temperature and, if multi-label, threshold."""
        logits = average_windows(outputs, encoded, len(examples))
        return self.calibrate(logits, examples).tune_threshold(logits, examples)

    def target_slices(self, examples: Sequence[ClassificationExample], tokenizer: Tokenizer) -> tuple[str, SliceMasks]:
        """By label; in multi-label tasks an example is in the slice of each of its labels."""
        if not self.multi_label:
            return "label", group_masks(self._require_label(example) for example in examples)
        gold = self._multi_hot_labels(examples) > 0
        masks = sorted(((label, gold[:, i]) for i, label in enumerate(self.labels)), key=lambda named: -named[1].sum())
        return "label", [*masks[:MAX_LABELS], ("no label", gold.sum(-1) == 0)]

    def label_matrices(
        self, predictions: Sequence[Any], examples: Sequence[ClassificationExample]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Multi-label: predicted and gold labels, bool (examples, labels) each, the labels that the task lacks last."""
        labels = [*self.labels, *self.find_unknown_labels(examples)]
        predicted, gold = [prediction.labels for prediction in predictions], map(self._split_labels, examples)
        return _membership(predicted, labels), _membership(gold, labels)

    def calibrate(self, logits: NDArray[Any], examples: Sequence[ClassificationExample]) -> "TextClassification":
        """With the temperature that maximizes the likelihood of the labels, from logits (examples, labels) (Guo et al. 2017).

        Unchanged if every prediction is correct: the likelihood then has no maximum. Labels that the task lacks are left out.
        """
        rows = np.asarray(logits, np.float64)
        labels = (
            (self._multi_hot_labels(examples) > 0).astype(np.int64).ravel() if self.multi_label else self._label_ids(examples)
        )
        if self.multi_label:  # sigmoid(x) = softmax([0, x])[1]
            rows = np.stack([np.zeros(rows.size), rows.ravel()], -1)
        rows, labels = rows[labels >= 0], labels[labels >= 0]
        if (rows.argmax(-1) == labels).all():
            return self
        return msgspec.structs.replace(self, temperature=calibration.fit_temperature(rows, labels))

    def tune_threshold(self, logits: NDArray[Any], examples: Sequence[ClassificationExample]) -> "TextClassification":
        """Multi-label: with the threshold of the best micro F1 on these examples, from logits (examples, labels).

        Unchanged for single-label tasks and if no example has a label. `base.average_windows` merges logits of windows.
        """
        if not self.multi_label or not (labels := self._multi_hot_labels(examples) > 0).any():
            return self
        return msgspec.structs.replace(self, threshold=_best_threshold(self.probabilities(logits), labels))

    @property
    def logit_temperature(self) -> float:
        return self.temperature

    def export_notes(self) -> list[str]:
        notes = list[str]()
        if self.temperature != 1:
            function = "sigmoid" if self.multi_label else "softmax"
            notes.append(f"temperature = {self.temperature:.4g} is folded into the last linear layer: the {function} of the "
                         "logits gives the calibrated probabilities")  # fmt: skip
        if self.multi_label:
            notes.append(f"threshold = {self.threshold:.4g}: predict every label whose probability (sigmoid) is at least this; "
                         "config.json cannot express it")  # fmt: skip
        return notes

    def class_weight_vector(self) -> NDArray[np.float32] | None:
        """(labels,) weight of each label in the loss (multi-label: of its positives; negatives weigh 1)."""
        if self.class_weights == "balanced":
            raise UserError("balanced class_weights are computed from the training examples: call fit(examples) first")
        weights = self.class_weights
        return None if weights is None else np.array([weights.get(label, 1.0) for label in self.labels], np.float32)

    def parse_row(self, row: ExampleRow) -> ClassificationExample:
        return ClassificationExample(**self._text_fields(row), label=self._read_label(row))

    def _targets(self, examples: Sequence[ClassificationExample]) -> NDArray[Any]:
        """Label ids (examples,), or multi-hot rows (examples, labels) if multi-label."""
        return self._multi_hot_labels(examples) if self.multi_label else self._label_ids(examples)

    def _read_label(self, row: ExampleRow) -> str | None:
        """The label of a row as text; a list of labels is joined by |."""
        value = row.get("label")
        if self.multi_label and isinstance(value, list) and all(isinstance(label, str | int) for label in value):
            value = "|".join(label if isinstance(label, str) else json.dumps(label) for label in value)
        if isinstance(value, list | dict):
            raise row.error(f"label is {json.dumps(value)[:40]}, not one label (task.multi_label=true takes a list of them)")
        if value is not None and not isinstance(value, str):
            value = json.dumps(value)
        if value == "" and not self.multi_label:
            raise row.error("label is empty")
        return value

    def _split_labels(self, example: ClassificationExample) -> list[str]:
        label = self._require_label(example)
        return list(dict.fromkeys(filter(None, map(str.strip, label.split("|"))))) if self.multi_label else [label]

    def find_unknown_labels(self, examples: Sequence[ClassificationExample]) -> dict[str, list[ClassificationExample]]:
        """In sorted order."""
        unknown: dict[str, list[ClassificationExample]] = {}
        for example in examples:
            for label in self._split_labels(example):
                if label not in self.labels:
                    unknown.setdefault(label, []).append(example)
        return dict(sorted(unknown.items()))

    def check_scorable(self, examples: Sequence[ClassificationExample], path: str) -> None:
        """Every example needs a label, also one that the task lacks, but some have labels that it has."""
        labels = [self._split_labels(example) for example in examples]
        if labels and not self.multi_label and not any(label in self.labels for [label] in labels):
            self._check_labels(labels[0], examples[0].location)

    def _check_labels(self, labels: Iterable[str], location: str) -> None:
        for label in labels:
            if label not in self.labels:
                raise unknown_label_error(location, label, self.labels)

    def _label_ids(self, examples: Sequence[ClassificationExample]) -> NDArray[np.int64]:
        """(examples,); UNKNOWN_LABEL for a label that the task lacks."""
        label_to_id = {label: index for index, label in enumerate(self.labels)}
        return np.array([label_to_id.get(self._require_label(example), UNKNOWN_LABEL) for example in examples], np.int64)

    def _multi_hot_labels(self, examples: Sequence[ClassificationExample]) -> NDArray[np.float32]:
        """(examples, labels), values 0 and 1; labels that the task lacks are left out."""
        multi_hot = np.zeros((len(examples), len(self.labels)), np.float32)
        for row, example in zip(multi_hot, examples, strict=True):
            row[[self.labels.index(label) for label in self._split_labels(example) if label in self.labels]] = 1
        return multi_hot

    def _predict(self, logits: NDArray[Any]) -> list[ClassificationPrediction | MultiLabelPrediction]:
        return [self._to_prediction(row) for row in self.probabilities(logits)]

    def _to_prediction(self, probabilities: NDArray[np.float64]) -> ClassificationPrediction | MultiLabelPrediction:
        scores = dict(zip(self.labels, probabilities.tolist(), strict=True))
        if self.multi_label:
            return MultiLabelPrediction([label for label, score in scores.items() if score >= self.threshold], scores)
        return ClassificationPrediction(self.labels[int(probabilities.argmax())], scores)

    def _with_balanced_weights(self, label_counts: Counter[str], num_examples: int) -> "TextClassification":
        """Weights n / (labels * count), or negatives / positives per label if multi-label; 1 for a label without examples."""
        weights = dict.fromkeys(self.labels, 1.0)
        for label, count in label_counts.items():
            weights[label] = (
                (num_examples - count) / count or 1.0 if self.multi_label else num_examples / (len(self.labels) * count)
            )
        return msgspec.structs.replace(self, class_weights=weights)


def _membership(label_sets: Iterable[Sequence[str]], labels: Sequence[str]) -> NDArray[np.bool_]:
    """(examples, labels): whether the set of an example has the label."""
    return np.array([[label in label_set for label in labels] for label_set in label_sets], bool)


def log_frequencies(labels: Sequence[str], observed: Sequence[str]) -> NDArray[np.float64]:
    """(labels,) log of the relative frequency of each label."""
    counts = Counter(observed)
    return np.log([(counts[label] + 1e-9) / max(1, len(observed)) for label in labels])


def _best_threshold(probabilities: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Threshold of the best micro F1: midway between the last probability above it and the first one below."""
    order = np.argsort(-probabilities, axis=None, kind="stable")
    values, sorted_labels = probabilities.ravel()[order], labels.ravel()[order]
    cuts = np.flatnonzero(np.append(values[1:] < values[:-1], True))  # a threshold can only separate different values
    true_positives, num_predicted = np.cumsum(sorted_labels)[cuts], cuts + 1
    best = cuts[int(np.argmax(2 * true_positives / (num_predicted + labels.sum())))]
    next_value = values[best + 1] if best + 1 < len(values) else 0.0
    midpoint = (values[best] + next_value) / 2
    return float(midpoint if midpoint > next_value else values[best])


def _source_files(examples: Sequence[ClassificationExample]) -> str:
    return ", ".join(sorted({example.source for example in examples if example.source})) or "the examples"
