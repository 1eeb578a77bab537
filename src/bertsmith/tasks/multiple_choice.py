"""Which of several options goes with a context: what happens next, which answer is right."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosInt
from ..errors import UserError
from ..metrics import scores as scores_
from ..tokenization.tables import SUPPORTED_FORMATS, is_json
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, Example, LongText, ModelOutputs, Prediction, TaskHeadType, average_windows, encode_pairs
from .special_tokens import TemplateTask
from .table_rows import ExampleReader, ExampleRow, missing_label_error, read_examples


@dataclass(frozen=True)
class MultipleChoiceExample(Example):
    """A context, what is asked of it if anything is, and the options; `label` counts from 0."""

    context: str
    options: tuple[str, ...]
    question: str | None = None
    label: int | None = None


@dataclass(frozen=True)
class MultipleChoicePrediction(Prediction):
    choice: int  # from 0
    option: str
    scores: list[float]  # how probable each option is


class MultipleChoice(TemplateTask, frozen=True, tag="choose"):
    long: Annotated[
        LongText, "texts that do not fit: cut at the end, or windows whose scores are averaged, or that the model joins"
    ] = "truncate"
    stride: Annotated[PosInt, "tokens from the start of one window to the next"] = 256
    columns: Annotated[dict[str, str], "what context, question, options and label are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head_type: ClassVar[TaskHeadType] = "text"
    num_outputs: ClassVar[int] = 1
    text_slots: ClassVar[tuple[str, ...]] = ("context", "options")  # the question is with the option
    global_segment: ClassVar[int | None] = 1  # question and option

    def read(self, path: Path) -> ExampleReader[MultipleChoiceExample]:
        """Lines of .jsonl: {"context": ..., "question": ..., "options": [...], "label": 0}; question and label may miss."""
        if not is_json(path):
            raise UserError(f"{path}: options are a list, which no table holds; of {SUPPORTED_FORMATS} give .jsonl")
        return ExampleReader(path, read_examples(path, self._parse_row, self.columns), self.skip_bad)

    def fit(self, examples: Sequence[MultipleChoiceExample]) -> "MultipleChoice":
        """With its guide tokens: there is nothing else to learn but that every example has its label."""
        self._gold_labels(examples)
        return msgspec.structs.replace(self, guides=self.collect_special_tokens(examples))

    def encode(self, examples: Sequence[MultipleChoiceExample], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """One sequence an option, [CLS] context [SEP] question option [SEP], the longer side cut at its end; or its windows.

        Targets `label`: a number an example, counted within the options of that example (`Encoded.example`). An option
        begins where a fact has number 0.
        """
        pairs = [(one.context, _question_with_option(one, option)) for one in examples for option in one.options]
        beside = zip(self.encode_special_tokens(examples, tokenizer), examples, strict=True)
        guides = [guide for guide, one in beside for _ in one.options]
        encoded = encode_pairs(pairs, tokenizer, max_length, self.long, self.stride, guides)
        owners = np.repeat(np.arange(len(examples)), [len(one.options) for one in examples])[encoded.example_index]
        known = bool(examples) and all(one.label is not None for one in examples)
        return replace(encoded, example_index=owners, targets={"label": self._gold_labels(examples)} if known else {})

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[MultipleChoiceExample]
    ) -> list[MultipleChoicePrediction]:
        """The score of an option is the mean over its windows."""
        if not examples:
            return []
        option = np.cumsum([part.number == 0 for part in encoded.metadata]) - 1
        ends = np.cumsum([len(one.options) for one in examples])
        rows = average_windows(outputs, replace(encoded, example_index=option), int(ends[-1]))[:, 0]
        return [_to_prediction(one, row) for one, row in zip(examples, np.split(rows, ends[:-1]), strict=True)]

    def compute_metrics(
        self, predictions: Sequence[MultipleChoicePrediction], examples: Sequence[MultipleChoiceExample]
    ) -> dict[str, float]:
        return {"accuracy": float(scores_.accuracy([one.choice for one in predictions], self._gold_labels(examples)))}

    def _parse_row(self, row: ExampleRow) -> MultipleChoiceExample:
        options, label = row.require("options"), row.get("label")
        if not isinstance(options, list) or len(options) < 2 or not all(isinstance(one, str) for one in options):
            raise row.error("options is not a list of two texts or more")
        if label is not None and (type(label) is not int or not 0 <= label < len(options)):
            raise row.error(f"label is {label!r}, not the number of an option from 0 to {len(options) - 1}")
        question = row.get_text("question") if row.get("question") is not None else None
        context, guides = row.get_text("context"), self.fill_template(row.get_cell)
        return MultipleChoiceExample(
            context, tuple(options), question, label, source=str(row.path), line=row.line, guides=guides
        )

    def _gold_labels(self, examples: Sequence[MultipleChoiceExample]) -> NDArray[np.int64]:
        for example in examples:
            if example.label is None:
                raise missing_label_error(example.source, example.line, "label", self.columns)
        return np.array([example.label for example in examples], np.int64)


def _question_with_option(example: MultipleChoiceExample, option: str) -> str:
    return option if example.question is None else f"{example.question} {option}"


def _to_prediction(example: MultipleChoiceExample, logits: NDArray[np.float64]) -> MultipleChoicePrediction:
    weights = np.exp(logits - logits.max())
    best = int(logits.argmax())
    return MultipleChoicePrediction(best, example.options[best], (weights / weights.sum()).tolist())
