"""Base class of tasks on a text or a pair of texts with one label (classification, regression)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosInt
from ..errors import UserError
from ..tokenization.tables import UTF8
from ..tokenization.tokenizer import Tokenizer
from .base import (
    BothOrdersPair,
    CrossAttentionPair,
    EncodedExamples,
    Example,
    JointPair,
    LongText,
    PairEncoding,
    RequestFields,
    TaskHeadType,
)
from .sequences import TextWindow, encode_pairs, expand_to_rows
from .special_tokens import SpecialTokenIds, TemplateTask
from .table_rows import ExampleReader, ExampleRow, missing_label_error, read_examples

L = TypeVar("L")


@dataclass(frozen=True)
class LabeledExample(Example, Generic[L]):
    """A text or a pair of texts and its label, if known."""

    text: str
    text_b: str | None = None
    label: L | None = None


T = TypeVar("T", bound=LabeledExample[Any])


class TextPairTask(TemplateTask, Generic[T], frozen=True):
    """A task with one row of outputs per text or pair; subclasses define `parse_row` and `_targets`."""

    pair: Annotated[
        PairEncoding,
        "text pairs: joint (one sequence), both (one per order), cross (cross-attention of two)",
    ] = JointPair()
    long_text: Annotated[
        LongText | None,
        "texts over max_length: truncate, window (logits averaged), hierarchical (vectors pooled); default: truncate, or "
        "hierarchical if max_length is not set and over a tenth of the training texts are longer",
    ] = None
    doc_stride: Annotated[PosInt, "tokens between the starts of consecutive windows"] = 256
    hex: Annotated[bool, "texts are hex-encoded bytes (set by training, from the model's tokenizer)"] = False
    columns: Annotated[dict[str, str], "column names of text, text_b and label in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "skip invalid rows and count them, instead of stopping with an error"] = False

    head_type: ClassVar[TaskHeadType] = "text"

    def read(self, path: Path, encoding: str = UTF8) -> ExampleReader[T]:
        """Examples of .tsv, .csv or .jsonl; the label is None if the file has none."""
        return ExampleReader(path, read_examples(path, self.parse_row, self.columns, self.hex, encoding), self.skip_bad)

    def encode(self, examples: Sequence[T], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """One sequence per text or pair (two with pair=cross or both), or its windows.

        Targets: `label`, one per row of outputs.
        """
        special_tokens = self.encode_special_tokens(examples, tokenizer)
        if isinstance(self.pair, JointPair):
            texts = [(example.text, example.text_b) for example in examples]
            encoded = encode_pairs(texts, tokenizer, max_length, self.long_text or "truncate", self.doc_stride, special_tokens)
        else:
            self._check_pairs(examples)
            encode_pair = self._encode_both_orders if isinstance(self.pair, BothOrdersPair) else self._encode_separately
            encoded = encode_pair(examples, special_tokens, tokenizer, max_length)
        if not examples or any(example.label is None for example in examples):
            return encoded
        return replace(encoded, targets={"label": expand_to_rows(self._targets(examples), encoded)})

    def sequence_length(self, text_lengths: Sequence[int]) -> int:
        if isinstance(self.pair, CrossAttentionPair):
            return max(text_lengths) + 2
        return TemplateTask.sequence_length(self, text_lengths)

    def request_fields(self, names: Collection[str] = ()) -> RequestFields:
        """`text_b` is required if the task was fine-tuned on pairs."""
        required = ("text", "text_b") if "text_b" in self.columns else ("text",)
        return RequestFields(required, ("text_b",), 'model("a fine film")')

    def parse_row(self, row: ExampleRow) -> T:
        raise NotImplementedError

    def _targets(self, examples: Sequence[T]) -> NDArray[Any]:
        """Targets of the loss, one per example."""
        raise NotImplementedError

    def _text_fields(self, row: ExampleRow) -> dict[str, Any]:
        """Fields of an example except the label."""
        second = row.get_text("text_b") if row.get("text_b") is not None or "text_b" in self.columns else None
        location = {"source": str(row.path), "line": row.line, "id": row.id}
        return {"text": row.get_text("text"), "text_b": second, "special_tokens": self.fill_template(row.get_cell), **location}

    def _require_label(self, example: LabeledExample[L]) -> L:
        if example.label is None:
            raise missing_label_error(example.source, example.line, "label", self.columns)
        return example.label

    def _encode_separately(
        self, examples: Sequence[T], special_tokens: Sequence[SpecialTokenIds], tokenizer: Tokenizer, max_length: int
    ) -> EncodedExamples:
        """Two sequences per pair, one for each text, truncated separately."""
        texts = [(text, None) for example in examples for text in (example.text, example.text_b or "")]
        special_per_text = [
            special
            for pair in special_tokens
            for special in (
                SpecialTokenIds(before_first=pair.before_first),
                SpecialTokenIds(before_first=pair.before_second, after_last=pair.after_last),
            )
        ]
        return _group_pairs(encode_pairs(texts, tokenizer, max_length, special_tokens=special_per_text))

    def _encode_both_orders(
        self, examples: Sequence[T], special_tokens: Sequence[SpecialTokenIds], tokenizer: Tokenizer, max_length: int
    ) -> EncodedExamples:
        """Two sequences per pair, one for each order of the texts; special tokens stay with their texts."""
        orders = [
            order for example in examples for order in ((example.text, example.text_b), (example.text_b or "", example.text))
        ]
        special_per_order = [
            ordered
            for pair in special_tokens
            for ordered in (pair, SpecialTokenIds(pair.before_second, pair.before_first, pair.after_last))
        ]
        return _group_pairs(encode_pairs(orders, tokenizer, max_length, special_tokens=special_per_order))

    def _check_pairs(self, examples: Sequence[T]) -> None:
        pair_kind = self.pair.__struct_config__.tag
        if self.long_text not in (None, "truncate"):
            raise UserError(f"task.pair={pair_kind} encodes a pair as two sequences, each truncated to max_length, and has no "
                           f"windows; leave out task.long_text={self.long_text}, or set task.pair=joint")  # fmt: skip
        if single := next((example for example in examples if example.text_b is None), None):
            raise UserError(f"{single.location} has no text_b, which task.pair={pair_kind} needs; name its column by "
                           "columns.text_b=... (data.columns.text_b=... in finetune)")  # fmt: skip


def _group_pairs(encoded: EncodedExamples) -> EncodedExamples:
    """Mark each two sequences as one example whose outputs the model pools."""
    num_pairs = len(encoded.input_ids) // 2
    metadata = [TextWindow(number, 2, pooled=True) for _ in range(num_pairs) for number in range(2)]
    return replace(encoded, example_index=np.repeat(np.arange(num_pairs), 2), metadata=metadata)
