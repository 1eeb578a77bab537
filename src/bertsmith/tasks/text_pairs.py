"""What tasks about one text or two have in common: their files, their sequences, and a label that may be known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosInt
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .base import (
    BothOrdersPair,
    EncodedExamples,
    Example,
    JointPair,
    LongText,
    PairEncoding,
    TaskHeadType,
    TextWindow,
    encode_pairs,
    expand_to_rows,
)
from .special_tokens import SpecialTokenIds, TemplateTask
from .table_rows import ExampleReader, ExampleRow, missing_label_error, read_examples

L = TypeVar("L")


@dataclass(frozen=True)
class LabeledExample(Example, Generic[L]):
    """A text, or a pair, and its label if it is known."""

    text: str
    text_b: str | None = None
    label: L | None = None


T = TypeVar("T", bound=LabeledExample[Any])


class TextPairTask(TemplateTask, Generic[T], frozen=True):
    """A task that gives a text, or a pair, one row of scores; each kind says what an example of a row is, and its target."""

    pair: Annotated[
        PairEncoding,
        "text and text_b: joint, in one sequence; both, in one for each order; cross, each by itself, joined by attention",
    ] = JointPair()
    long: Annotated[
        LongText, "texts that do not fit: cut at the end, or windows whose scores are averaged, or that the model joins"
    ] = "truncate"
    stride: Annotated[PosInt, "tokens from the start of one window to the next"] = 256
    hex: Annotated[bool, "texts are bytes written in hex; found in the model's tokenizer"] = False
    columns: Annotated[dict[str, str], "what text, text_b and label are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head_type: ClassVar[TaskHeadType] = "text"

    def read(self, path: Path) -> ExampleReader[T]:
        """Rows of .tsv, .csv or .jsonl; the label is None where the file has none. `skipped` of it counts bad rows."""
        return ExampleReader(path, read_examples(path, self._parse_row, self.columns, self.hex), self.skip_bad)

    def encode(self, examples: Sequence[T], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """One sequence a text or a pair, or its windows; with pair=cross two. Targets `label`: one for each row of scores."""
        guides = self.encode_special_tokens(examples, tokenizer)
        if isinstance(self.pair, JointPair):
            texts = [(one.text, one.text_b) for one in examples]
            encoded = encode_pairs(texts, tokenizer, max_length, self.long, self.stride, guides)
        else:
            self._check_pairs(examples)
            way = self._encode_both_orders if isinstance(self.pair, BothOrdersPair) else self._encode_separately
            encoded = way(examples, guides, tokenizer, max_length)
        if not examples or any(one.label is None for one in examples):
            return encoded
        return replace(encoded, targets={"label": expand_to_rows(self._targets(examples), encoded)})

    def _parse_row(self, row: ExampleRow) -> T:
        raise NotImplementedError

    def _targets(self, examples: Sequence[T]) -> NDArray[Any]:
        """What the loss needs of each example."""
        raise NotImplementedError

    def _text_fields(self, row: ExampleRow) -> dict[str, Any]:
        """What an example has of its row, but for the label."""
        second = row.get_text("text_b") if row.get("text_b") is not None or "text_b" in self.columns else None
        guides = self.fill_template(row.get_cell)
        return {"text": row.get_text("text"), "text_b": second, "source": str(row.path), "line": row.line, "guides": guides}

    def _require_label(self, example: LabeledExample[L]) -> L:
        if example.label is None:
            raise missing_label_error(example.source, example.line, "label", self.columns)
        return example.label

    def _encode_separately(
        self, examples: Sequence[T], special_tokens: Sequence[SpecialTokenIds], tokenizer: Tokenizer, max_length: int
    ) -> EncodedExamples:
        """The texts of a pair as two sequences, one after the other, each cut at its end."""
        sides = [(side, None) for one in examples for side in (one.text, one.text_b or "")]
        halves = [
            half
            for one in special_tokens
            for half in (
                SpecialTokenIds(before_first=one.before_first),
                SpecialTokenIds(before_first=one.before_second, after_last=one.after_last),
            )
        ]
        return _group_pairs(encode_pairs(sides, tokenizer, max_length, special_tokens=halves))

    def _encode_both_orders(
        self, examples: Sequence[T], special_tokens: Sequence[SpecialTokenIds], tokenizer: Tokenizer, max_length: int
    ) -> EncodedExamples:
        """A pair as two sequences, one for each order; guide tokens stay with their texts."""
        orders = [order for one in examples for order in ((one.text, one.text_b), (one.text_b or "", one.text))]
        beside = [
            guide
            for one in special_tokens
            for guide in (one, SpecialTokenIds(one.before_second, one.before_first, one.after_last))
        ]
        return _group_pairs(encode_pairs(orders, tokenizer, max_length, special_tokens=beside))

    def _check_pairs(self, examples: Sequence[T]) -> None:
        kind = self.pair.__struct_config__.tag
        if self.long != "truncate":
            raise UserError(f"task.pair={kind} makes two sequences of a pair, and cuts them at the length; leave out "
                           f"task.long={self.long}, or take task.pair=joint")  # fmt: skip
        if lone := next((one for one in examples if one.text_b is None), None):
            raise UserError(f"{lone.location} has no text_b, which task.pair={kind} reads beside it; name its column: "
                           "columns.text_b, or in finetune data.columns.text_b=...")  # fmt: skip


def _group_pairs(encoded: EncodedExamples) -> EncodedExamples:
    """The model joins two sequences to one answer."""
    pairs = len(encoded.input_ids) // 2
    facts = [TextWindow(side, 2, pooled=True) for _ in range(pairs) for side in range(2)]
    return replace(encoded, example_index=np.repeat(np.arange(pairs), 2), metadata=facts)
