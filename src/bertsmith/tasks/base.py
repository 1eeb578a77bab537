"""A task: what it reads, encodes, decodes and measures, and how its results are shown (numpy only).

`Task` is what training, prediction, evaluation and export ask; `Example`, `EncodedExamples` and `Prediction` are its data.
Sequences of texts are built in `sequences.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosInt, Variant
from ..errors import UserError
from ..metrics.results import MetricResult
from ..metrics.scores import confusion_matrix
from ..tokenization.tables import UTF8, locate
from ..tokenization.tokenizer import Tokenizer
from .mistakes import Mistake, text_spans
from .scorers.conlleval import MatchCounts

if TYPE_CHECKING:
    from .slicing import SliceMasks
    from .table_rows import ExampleReader, ExampleRow

TaskHeadType = Literal["text", "token", "span", "embedding", "lm"]
LossKind = Literal["cross_entropy", "binary_cross_entropy", "mse", "span", "choice", "crf"]
ModelOutputs = Sequence[NDArray[Any]] | NDArray[Any]
LongText = Literal["truncate", "window", "hierarchical"]


class JointPair(Variant, frozen=True, tag="joint"):
    """[CLS] text [SEP] text_b [SEP]: one sequence; both texts share `max_length`."""


class CrossAttentionPair(Variant, frozen=True, tag="cross"):
    """[CLS] text [SEP] and [CLS] text_b [SEP], up to `max_length` tokens each, combined by cross-attention blocks."""

    blocks: Annotated[PosInt, "number of cross-attention blocks in which each text attends to the other"] = 2


class BothOrdersPair(Variant, frozen=True, tag="both"):
    """[CLS] text [SEP] text_b [SEP] and the same with the texts swapped; the pooled vectors of both sequences are added.

    The encoding of similarity tasks in GPT (Radford et al. 2018, section 3.3).
    """


PairEncoding = JointPair | CrossAttentionPair | BothOrdersPair


@dataclass(frozen=True, kw_only=True)
class Example:
    """One input of a task, with its label if known; each task adds its own fields."""

    source: str = ""  # file it was read from (empty if none), for error messages
    line: int = 0
    id: str | int = ""  # field or column `id` of its row; empty if there is none
    special_tokens: tuple[str, ...] = ()  # special tokens filled in from the task's template, in its order

    @property
    def location(self) -> str:
        return locate(Path(self.source), self.line) if self.source else "an example"

    @property
    def texts(self) -> list[str]:
        """The input texts: by default the fields `text` and `text_b`."""
        return [text for name in ("text", "text_b") if (text := getattr(self, name, None)) is not None]


@dataclass(frozen=True)
class Prediction:
    """Prediction for one example. `to_answer` gives what users see: in Python, in JSON lines and over HTTP."""

    def to_answer(self, top_k: int | None = None) -> dict[str, Any]:
        """The prediction as JSON-compatible values, by default its fields; `top_k` limits or adds alternatives."""
        if top_k is not None:
            raise UserError(f"top_k={top_k} is for masks, labels (classify) and candidate answers (answer); leave it out")
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}


@dataclass(frozen=True)
class EncodedExamples:
    """Model inputs: one sequence per example, or several where a long text is split into windows."""

    input_ids: list[NDArray[np.int64]]  # each [CLS] ... [SEP]
    token_type_ids: list[NDArray[np.int64]]  # 0/1, same lengths
    example_index: NDArray[np.int64]  # (sequences,) index of the example each belongs to
    targets: dict[str, NDArray[Any]] = field(default_factory=dict)  # inputs of the loss; empty if an example has no label
    metadata: list[Any] = field(default_factory=list)  # one per sequence, task-specific (offsets, windows), for `decode`

    @cached_property
    def seq_ends(self) -> NDArray[np.int64]:
        """(sequences,) end of each sequence in their concatenation, the layout of token-level targets."""
        return np.cumsum([len(ids) for ids in self.input_ids])

    def select_examples(self, start: int, stop: int) -> "EncodedExamples":
        """Sequences of examples start..stop (exclusive), with `example_index` starting at 0 again and without targets."""
        selected = np.flatnonzero((self.example_index >= start) & (self.example_index < stop))
        input_ids, token_type_ids, metadata = (
            [values[i] for i in selected if values] for values in (self.input_ids, self.token_type_ids, self.metadata)
        )
        return EncodedExamples(input_ids, token_type_ids, self.example_index[selected] - start, {}, metadata)


class RequestFields(NamedTuple):
    """The fields of a request for a prediction, and a call as an example for error messages."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    usage: str
    text_lists: tuple[str, ...] = ()  # fields that hold a list of texts, not a text


class Confidences(NamedTuple):
    """Confidence in each prediction, whether it is correct, and the probability of the gold label, (predictions,) each."""

    confidences: NDArray[np.float64]
    correct: NDArray[Any]
    target_probs: NDArray[np.float64] | None = None


def unknown_label_error(location: str, label: str, labels: Sequence[str]) -> UserError:
    """For a label that is not one of the task's `labels`."""
    matches = get_close_matches(label, labels, n=1)
    hint = f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(labels)}"
    return UserError(f"{location}: {label!r} is not a label of this task; {hint}")


class Task(Variant, frozen=True):
    """Base class of tasks.

    A subclass defines `num_outputs`, `metric_names`, `read`, `encode`, `decode`, `compute_metric_results`, `request_fields`
    and `parse_row`, and overrides what differs: all else has a default.

    What a model of the task computes: `head_type` and `num_outputs` are the outputs, `loss` how they are trained.

    - text: one row per sequence, (sequences, num_outputs)
    - token: (length, num_outputs) per sequence; span: (length, 2), start and end logits
    - embedding: no head; the pooled vector of each text, (texts, hidden_size)
    - lm: no task head; the ids of a generated text
    """

    head_type: ClassVar[TaskHeadType] = "text"
    examples_per_batch: ClassVar[int] = 32  # default batch size of fine-tuning
    groups_sequences: ClassVar[bool] = False  # the loss compares the sequences of an example: they stay in one batch
    global_segment: ClassVar[int | None] = None  # token type with global attention (besides [CLS]) in Longformer
    label_fields: ClassVar[tuple[str, ...]] = ("label",)  # columns of the files that a request does not have
    unsupported: ClassVar[Mapping[str, str]] = {}  # options of `finetune` that the task cannot use, and why
    mistake_order: ClassVar[str] = "those with the largest loss"  # which mistakes a report shows first

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the head; 0 if there is no head."""
        raise NotImplementedError

    @property
    def loss(self) -> LossKind:
        """Loss of the head: a key of `objectives.task_losses.TASK_LOSSES`."""
        return "cross_entropy"

    @property
    def metric_names(self) -> Sequence[str]:
        """Names of the metrics, known before any prediction (after `fit`)."""
        raise NotImplementedError

    @property
    def primary_metric(self) -> str:
        """The metric that selects the best checkpoint, and the headline of a report: by default the first."""
        return self.metric_names[0]

    def read(self, path: Path, encoding: str = UTF8) -> "ExampleReader[Any]":
        """Examples of a file; an invalid row raises an error with file and line, or is skipped and counted with `skip_bad`."""
        raise NotImplementedError

    def fit(self, examples: Sequence[Any]) -> "Task":
        """The task with what it takes from the training examples, such as its labels; refuses unusable examples."""
        return self

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """Sequences of at most `max_length` tokens; with targets only if every example has a label."""
        raise NotImplementedError

    def decode(self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[Any]) -> list[Any]:
        """One prediction per example, in order."""
        raise NotImplementedError

    def compute_metric_results(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MetricResult]:
        """Each metric as a function of per-example values, so that any subset or resample of examples can be scored.

        Every example is labeled (see `is_labeled`).
        """
        raise NotImplementedError

    def compute_corpus_metrics(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Metrics that are no function of per-example values, such as a best threshold: no confidence interval, no slices."""
        return {}

    def compute_metrics(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
        """Values of all metrics on the labeled examples, in the order of `metric_names`."""
        scored = self._select_labeled(predictions, examples)
        values = {name: result.score for name, result in self.compute_metric_results(*scored).items()}
        values |= self.compute_corpus_metrics(*scored)
        return {name: values[name] for name in dict.fromkeys([*self.metric_names, *values]) if name in values}

    def compute_selection_score(self, metric: str, predictions: Sequence[Any], examples: Sequence[Any]) -> float:
        """The metric as a score that selects the best checkpoint: negated where lower is better (an error)."""
        scored = self._select_labeled(predictions, examples)
        result = self.compute_metric_results(*scored).get(metric)
        if result is None:
            return self.compute_corpus_metrics(*scored)[metric]
        return -result.score if result.lower_is_better else result.score

    def _select_labeled(self, predictions: Sequence[Any], examples: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        labeled = [i for i, example in enumerate(examples) if self.is_labeled(example)]
        return [predictions[i] for i in labeled], [examples[i] for i in labeled]

    # Options of the model

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs, in their order; empty if they have none."""
        return ()

    @property
    def pair(self) -> PairEncoding:
        """How a pair of texts is encoded."""
        return JointPair()

    def class_weight_vector(self) -> NDArray[np.float32] | None:
        """(num_outputs,) weight of each label in the loss; None: all 1."""
        return None

    def max_context(self, max_length: int) -> int:
        """Tokens of neighboring examples that an example is encoded with, at most, on each side."""
        return 0

    @property
    def embedding_options(self) -> dict[str, Any]:
        """Options of `sequences.encode_pairs` for the embeddings of single texts."""
        return {}

    def find_prompt(self, name: str | None = None) -> str:
        """What is put before an embedded text: the prompt of that name, else the default one; empty if there is none."""
        if name is not None:
            raise UserError(f"prompt_name={name} is not known; this model has no prompts")
        return ""

    @property
    def search_prompts(self) -> tuple[str | None, str | None]:
        """Names of the prompts of search queries and of documents; None: the default prompt."""
        return None, None

    # Export

    @property
    def logit_temperature(self) -> float:
        """What the logits of the head are divided by before their softmax or sigmoid."""
        return 1.0

    def export_notes(self) -> list[str]:
        """What an exported model computes otherwise than a reader of its config.json expects; one sentence each."""
        return []

    # Requests

    def request_fields(self, names: Collection[str] = ()) -> RequestFields:
        """The fields of a request; they may depend on which fields (`names`) it has."""
        raise NotImplementedError

    def parse_row(self, row: "ExampleRow") -> Any:
        """The example of a row, or of a request (which has no label)."""
        raise NotImplementedError

    def read_requests(self, path: Path, encoding: str = UTF8) -> "ExampleReader[Any]":
        """Examples of a file of requests: missing, invalid or unknown labels are ignored, and so is `skip_bad`."""
        columns = {**getattr(self, "columns", {}), **dict.fromkeys(self.label_fields, "")}
        return msgspec.structs.replace(self, columns=columns, skip_bad=False).read(path, encoding)

    def to_answer(self, prediction: Any, example: Any, top_k: int | None = None) -> Any:
        """The prediction as JSON-compatible values: what users see."""
        return prediction.to_answer(top_k)

    def input_texts(self, example: Any) -> dict[str, str]:
        """The texts of an example by name, which identify its answer if it has no id."""
        names = ("text", "text_b", "question", "context")
        return {name: text for name in names if (text := getattr(example, name, None)) is not None}

    # Evaluation

    def is_labeled(self, example: Any) -> bool:
        """Whether to train and evaluate on an example; False leaves it out without an error."""
        return True

    def find_unknown_labels(self, examples: Sequence[Any]) -> dict[str, list[Any]]:
        """Examples by each of their labels that the task does not have; each of these counts as an error of the model.

        By default there can be none: the first raises UserError.
        """
        for example in examples if self.labels else []:
            value = getattr(example, self.label_fields[0], None)
            for label in value if isinstance(value, list | tuple) else [value]:
                if isinstance(label, str) and label not in self.labels:
                    raise unknown_label_error(example.location, label, self.labels)
        return {}

    def check_scorable(self, examples: Sequence[Any], path: str) -> None:
        """Raise UserError, before training, for dev or test examples that cannot be evaluated."""
        self.fit(examples)  # refuses an example without its label

    def tune(self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[Any]) -> "Task":
        """With the thresholds and the temperature that suit these examples best."""
        return self

    def find_correct(self, predictions: Sequence[Any], examples: Sequence[Any]) -> NDArray[np.bool_] | None:
        """(examples,) which predictions are entirely correct; None if no prediction is exactly right, as in regression."""
        return None

    def find_mistakes(self, predictions: Sequence[Any], examples: Sequence[Any]) -> list[Mistake]:
        """The wrong predictions, in any order; by default those of `find_correct`, with the first field of the answer."""
        correct, mistakes = self.find_correct(predictions, examples), []
        for index in [] if correct is None else np.flatnonzero(~correct).tolist():
            example, answer = examples[index], predictions[index].to_answer()
            gold, predicted = str(getattr(example, self.label_fields[0])), str(next(iter(answer.values())))
            texts, confidence = text_spans(example.texts), answer.get("score")
            mistakes.append(Mistake("wrong", example.location, gold, predicted, confidence, 1.0, texts))
        return mistakes

    def count_entity_mistakes(self, predictions: Sequence[Any], examples: Sequence[Any]) -> list[tuple[str, str, int]]:
        """(kind, entity type, count) of wrong entities, most frequent first; empty for tasks without entities."""
        return []

    def label_pairs(self, predictions: Sequence[Any], examples: Sequence[Any]) -> tuple[list[str], list[str], list[str]] | None:
        """(predicted labels, gold labels, all labels) for the confusion matrix; None without single labels."""
        return None

    def label_counts(self, predictions: Sequence[Any], examples: Sequence[Any]) -> dict[str, MatchCounts]:
        """Gold, predicted and correct occurrences of each label; by default from `label_pairs`."""
        if (pairs := self.label_pairs(predictions, examples)) is None:
            return {}
        matrix = confusion_matrix(*pairs)
        counts = zip(np.diagonal(matrix), matrix.sum(0), matrix.sum(1), strict=True)  # correct, predicted, gold
        return {label: MatchCounts(*map(int, row)) for label, row in zip(pairs[2], counts, strict=True)}

    def majority_outputs(self, examples: Sequence[Any]) -> NDArray[np.float64] | None:
        """(num_outputs,) outputs of the majority baseline: the most frequent label, or the mean; None for other tasks."""
        return None

    def confidences(self, predictions: Sequence[Any], examples: Sequence[Any]) -> Confidences | None:
        """For the calibration of the predictions; None if they have no probability."""
        return None

    def example_logits(self, outputs: ModelOutputs, encoded: EncodedExamples, num_examples: int) -> NDArray[np.float64] | None:
        """(examples, num_outputs) logits before temperature scaling; None for a task without."""
        return None

    def uncalibrated_predictions(self, logits: NDArray[np.float64]) -> list[Any]:
        """Predictions from `example_logits` at temperature 1."""
        raise NotImplementedError

    def slice_metric(self, results: Mapping[str, MetricResult]) -> tuple[str, MetricResult]:
        """(name, result) of the metric by which slices of the examples are compared."""
        return self.primary_metric, results[self.primary_metric]

    def target_slices(self, examples: Sequence[Any], tokenizer: Tokenizer) -> "tuple[str, SliceMasks] | None":
        """A criterion on the gold answer and its slices; None for none."""
        return None

    def sequence_length(self, text_lengths: Sequence[int]) -> int:
        """Tokens of the longest sequence of an example whose texts have so many tokens, with [CLS] and [SEP]."""
        return sum(text_lengths) + 1 + len(text_lengths)
