"""Multiple choice: the best of several options for a context and an optional question (SWAG, RACE)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosInt
from ..errors import UserError
from ..metrics import scores as scores_
from ..metrics.results import MetricResult
from ..tokenization.tables import SUPPORTED_FORMATS, UTF8, is_json
from ..tokenization.tokenizer import Tokenizer
from .base import (
    Confidences,
    EncodedExamples,
    Example,
    LongText,
    LossKind,
    ModelOutputs,
    Prediction,
    RequestFields,
    TaskHeadType,
)
from .mistakes import Mistake, TextSpan, nll, truncate_text
from .sequences import average_windows, encode_pairs
from .slicing import SliceMasks, group_masks
from .special_tokens import TemplateTask
from .table_rows import ExampleReader, ExampleRow, missing_label_error, read_examples


@dataclass(frozen=True)
class MultipleChoiceExample(Example):
    """A context, an optional question and the options; `label` is the index of the correct option, from 0."""

    context: str
    options: tuple[str, ...]
    question: str | None = None
    label: int | None = None

    @property
    def texts(self) -> list[str]:
        """The context, and each option with the question."""
        return [self.context, *(f"{self.question or ''} {option}" for option in self.options)]


@dataclass(frozen=True)
class MultipleChoicePrediction(Prediction):
    """The most probable option. `scores` are softmax probabilities over the options of the example; they sum to 1."""

    choice: int  # index of the option, from 0
    scores: list[float]  # probability of each option, in order

    @property
    def score(self) -> float:
        """Probability of the chosen option."""
        return self.scores[self.choice]

    def to_answer(self, top_k: int | None = None) -> dict[str, Any]:
        """`{"choice": 1, "score": 0.7, "scores": [0.3, 0.7]}`."""
        scores = super().to_answer(top_k)["scores"]
        return {"choice": self.choice, "score": self.score, "scores": scores}


class MultipleChoice(TemplateTask, frozen=True, tag="choose"):
    long_text: Annotated[
        LongText,
        "texts over max_length: truncate, window (logits averaged), hierarchical (vectors pooled)",
    ] = "truncate"
    doc_stride: Annotated[PosInt, "tokens between the starts of consecutive windows"] = 256
    columns: Annotated[dict[str, str], "column names of context, question, options and label in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "skip invalid rows and count them, instead of stopping with an error"] = False

    head_type: ClassVar[TaskHeadType] = "text"
    num_outputs: ClassVar[int] = 1
    loss: ClassVar[LossKind] = "choice"
    metric_names: ClassVar[tuple[str, ...]] = ("accuracy",)
    mistake_order: ClassVar[str] = "those whose correct option has the lowest probability"
    groups_sequences: ClassVar[bool] = True
    text_slots: ClassVar[tuple[str, ...]] = ("context", "options")  # the question precedes the option
    global_segment: ClassVar[int | None] = 1  # the segment of question and option

    def read(self, path: Path, encoding: str = UTF8) -> ExampleReader[MultipleChoiceExample]:
        """Lines of .jsonl: {"context": ..., "question": ..., "options": [...], "label": 0}; question and label are optional."""
        if not is_json(path):
            raise UserError(
                f"{path}: `options` is a list, which of the supported formats only .jsonl allows ({SUPPORTED_FORMATS})"
            )
        return ExampleReader(path, read_examples(path, self.parse_row, self.columns, encoding=encoding), self.skip_bad)

    def fit(self, examples: Sequence[MultipleChoiceExample]) -> "MultipleChoice":
        """With its special tokens; checks that every example has a label."""
        self._gold_labels(examples)
        return msgspec.structs.replace(self, special_tokens=self.collect_special_tokens(examples))

    def encode(self, examples: Sequence[MultipleChoiceExample], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """One sequence per option, [CLS] context [SEP] question option [SEP], truncated longest first, or its windows.

        Targets: `label`, (examples,) index of the correct option of each example. `example_index` is the example, not the
        option; the first window of each option has metadata `number` 0.
        """
        pairs = [
            (example.context, _question_with_option(example, option)) for example in examples for option in example.options
        ]
        with_examples = zip(self.encode_special_tokens(examples, tokenizer), examples, strict=True)
        special_tokens = [special for special, example in with_examples for _ in example.options]
        encoded = encode_pairs(pairs, tokenizer, max_length, self.long_text, self.doc_stride, special_tokens)
        example_index = np.repeat(np.arange(len(examples)), [len(example.options) for example in examples])[
            encoded.example_index
        ]
        known = bool(examples) and all(example.label is not None for example in examples)
        return replace(encoded, example_index=example_index, targets={"label": self._gold_labels(examples)} if known else {})

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[MultipleChoiceExample]
    ) -> list[MultipleChoicePrediction]:
        """The logit of an option is the mean over its windows."""
        if not examples:
            return []
        option_index = np.cumsum([window.number == 0 for window in encoded.metadata]) - 1
        option_ends = np.cumsum([len(example.options) for example in examples])
        logits = average_windows(outputs, replace(encoded, example_index=option_index), int(option_ends[-1]))[:, 0]
        return [_to_prediction(option_logits) for option_logits in np.split(logits, option_ends[:-1])]

    def compute_metric_results(
        self, predictions: Sequence[MultipleChoicePrediction], examples: Sequence[MultipleChoiceExample]
    ) -> dict[str, MetricResult]:
        choices = np.array([prediction.choice for prediction in predictions])
        return {"accuracy": MetricResult(scores_.accuracy, choices, self._gold_labels(examples))}

    def find_correct(
        self, predictions: Sequence[MultipleChoicePrediction], examples: Sequence[MultipleChoiceExample]
    ) -> NDArray[np.bool_]:
        return np.array([prediction.choice for prediction in predictions]) == self._gold_labels(examples)

    def find_mistakes(
        self, predictions: Sequence[MultipleChoicePrediction], examples: Sequence[MultipleChoiceExample]
    ) -> list[Mistake]:
        mistakes = []
        for prediction, gold, example in zip(predictions, self._gold_labels(examples).tolist(), examples, strict=True):
            if prediction.choice != gold:
                texts = [[TextSpan(truncate_text(text))] for text in (example.context, example.question) if text]
                answers = truncate_text(example.options[gold]), truncate_text(example.options[prediction.choice])
                loss = nll(prediction.scores[gold])
                mistakes.append(Mistake("option", example.location, *answers, prediction.score, loss, texts))
        return mistakes

    def confidences(
        self, predictions: Sequence[MultipleChoicePrediction], examples: Sequence[MultipleChoiceExample]
    ) -> Confidences:
        pairs = list(zip(predictions, self._gold_labels(examples).tolist(), strict=True))
        target_probs = np.array([prediction.scores[gold] for prediction, gold in pairs])
        correct = np.array([prediction.choice == gold for prediction, gold in pairs])
        return Confidences(np.array([max(prediction.scores) for prediction in predictions]), correct, target_probs)

    def target_slices(self, examples: Sequence[MultipleChoiceExample], tokenizer: Tokenizer) -> tuple[str, SliceMasks]:
        return "number of options", group_masks(f"{len(example.options)}" for example in examples)

    def sequence_length(self, text_lengths: Sequence[int]) -> int:
        context_length, *option_lengths = text_lengths
        return context_length + max(option_lengths) + 3

    def request_fields(self, names: Collection[str] = ()) -> RequestFields:
        usage = 'model(context="It rains.", options=["wet", "dry"])'
        return RequestFields(("context", "options"), ("question",), usage, text_lists=("options",))

    def parse_row(self, row: ExampleRow) -> MultipleChoiceExample:
        options, label = row.require("options"), row.get("label")
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(option, str) for option in options):
            raise row.error("options is not a list of two or more texts")
        if label is not None and (type(label) is not int or not 0 <= label < len(options)):
            raise row.error(f"label is {label!r}, not the index of an option, 0 to {len(options) - 1}")
        question = row.get_text("question") if row.get("question") is not None else None
        context, special_tokens = row.get_text("context"), self.fill_template(row.get_cell)
        return MultipleChoiceExample(
            context,
            tuple(options),
            question,
            label,
            source=str(row.path),
            line=row.line,
            id=row.id,
            special_tokens=special_tokens,
        )

    def _gold_labels(self, examples: Sequence[MultipleChoiceExample]) -> NDArray[np.int64]:
        for example in examples:
            if example.label is None:
                raise missing_label_error(example.source, example.line, "label", self.columns)
        return np.array([example.label for example in examples], np.int64)


def _question_with_option(example: MultipleChoiceExample, option: str) -> str:
    return option if example.question is None else f"{example.question} {option}"


def _to_prediction(logits: NDArray[np.float64]) -> MultipleChoicePrediction:
    weights = np.exp(logits - logits.max())
    return MultipleChoicePrediction(int(logits.argmax()), (weights / weights.sum()).tolist())
