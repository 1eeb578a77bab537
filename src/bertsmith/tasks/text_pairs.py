"""What tasks about one text or two have in common: their files, their sequences, and a label that may be known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import Count
from ..errors import BadInput
from ..tokenization.tokenizer import Tokenizer
from .base import Both, Encoded, Example, Head, Joint, Long, Pair, Part, by_row, sequences
from .special_tokens import Guided, Guides
from .table_rows import Kept, Row, examples, unlabelled

L = TypeVar("L")


@dataclass(frozen=True)
class Labelled(Example, Generic[L]):
    """A text, or a pair, and its label if it is known."""

    text: str
    text_b: str | None = None
    label: L | None = None


T = TypeVar("T", bound=Labelled[Any])


class OfTexts(Guided, Generic[T], frozen=True):
    """A task that gives a text, or a pair, one row of scores; each kind says what an example of a row is, and its target."""

    pair: Annotated[
        Pair, "text and text_b: joint, in one sequence; both, in one for each order; cross, each by itself, joined by attention"
    ] = Joint()
    long: Annotated[
        Long, "texts that do not fit: cut at the end, or windows whose scores are averaged, or that the model joins"
    ] = "truncate"
    stride: Annotated[Count, "tokens from the start of one window to the next"] = 256
    hex: Annotated[bool, "texts are bytes written in hex; found in the model's tokenizer"] = False
    columns: Annotated[dict[str, str], "what text, text_b and label are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head: ClassVar[Head] = "text"

    def read(self, path: Path) -> Kept[T]:
        """Rows of .tsv, .csv or .jsonl; the label is None where the file has none. `skipped` of it counts bad rows."""
        return Kept(path, examples(path, self._example, self.columns, self.hex), self.skip_bad)

    def encode(self, examples: Sequence[T], tokenizer: Tokenizer, length: int) -> Encoded:
        """One sequence a text or a pair, or its windows; with pair=cross two. Targets `label`: one for each row of scores."""
        guides = self.beside(examples, tokenizer)
        if isinstance(self.pair, Joint):
            texts = [(one.text, one.text_b) for one in examples]
            encoded = sequences(texts, tokenizer, length, self.long, self.stride, guides)
        else:
            self._in_pairs(examples)
            way = self._swapped if isinstance(self.pair, Both) else self._crossed
            encoded = way(examples, guides, tokenizer, length)
        if not examples or any(one.label is None for one in examples):
            return encoded
        return replace(encoded, targets={"label": by_row(self._targets(examples), encoded)})

    def _example(self, row: Row) -> T:
        raise NotImplementedError

    def _targets(self, examples: Sequence[T]) -> NDArray[Any]:
        """What the loss needs of each example."""
        raise NotImplementedError

    def _texts(self, row: Row) -> dict[str, Any]:
        """What an example has of its row, but for the label."""
        second = row.text("text_b") if row.get("text_b") is not None or "text_b" in self.columns else None
        guides = self.named(row.cell)
        return {"text": row.text("text"), "text_b": second, "source": str(row.path), "line": row.line, "guides": guides}

    def _label(self, example: Labelled[L]) -> L:
        if example.label is None:
            raise unlabelled(example.source, example.line, "label", self.columns)
        return example.label

    def _crossed(self, examples: Sequence[T], guides: Sequence[Guides], tokenizer: Tokenizer, length: int) -> Encoded:
        """The texts of a pair as two sequences, one after the other, each cut at its end."""
        sides = [(side, None) for one in examples for side in (one.text, one.text_b or "")]
        halves = [half for one in guides for half in (Guides(first=one.first), Guides(first=one.second, last=one.last))]
        return _by_two(sequences(sides, tokenizer, length, guides=halves))

    def _swapped(self, examples: Sequence[T], guides: Sequence[Guides], tokenizer: Tokenizer, length: int) -> Encoded:
        """A pair as two sequences, one for each order; guide tokens stay with their texts."""
        orders = [order for one in examples for order in ((one.text, one.text_b), (one.text_b or "", one.text))]
        beside = [guide for one in guides for guide in (one, Guides(one.second, one.first, one.last))]
        return _by_two(sequences(orders, tokenizer, length, guides=beside))

    def _in_pairs(self, examples: Sequence[T]) -> None:
        kind = self.pair.__struct_config__.tag
        if self.long != "truncate":
            raise BadInput(f"task.pair={kind} makes two sequences of a pair, and cuts them at the length; leave out "
                           f"task.long={self.long}, or take task.pair=joint")  # fmt: skip
        if lone := next((one for one in examples if one.text_b is None), None):
            raise BadInput(f"{lone.place} has no text_b, which task.pair={kind} reads beside it; name its column: "
                           "columns.text_b, or in finetune data.columns.text_b=...")  # fmt: skip


def _by_two(encoded: Encoded) -> Encoded:
    """The model joins two sequences to one answer."""
    pairs = len(encoded.ids) // 2
    facts = [Part(side, 2, pooled=True) for _ in range(pairs) for side in range(2)]
    return replace(encoded, example=np.repeat(np.arange(pairs), 2), facts=facts)
