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
from ..text.tokenizer import Tokenizer
from .base import Encoded, Example, Head, Joint, Long, Pair, Part, by_row, sequences
from .guides import Guided, Guides
from .kept import Kept
from .tables import Row, examples, unlabelled

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

    pair: Annotated[Pair, "text and text_b: joint, in one sequence, or cross, each by itself, joined by attention"] = Joint()
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
            encoded = self._crossed(examples, guides, tokenizer, length)
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
        if self.long != "truncate":
            raise BadInput(f"task.pair=cross gives each text the whole length of {length} tokens and cuts it there; leave out "
                           f"task.long={self.long}, or take task.pair=joint")  # fmt: skip
        if lone := next((one for one in examples if one.text_b is None), None):
            raise BadInput(
                f"{lone.place} has no text_b, which task.pair=cross attends to; name its column: columns.text_b, or in "
                "finetune data.columns.text_b=..."
            )
        sides = [(side, None) for one in examples for side in (one.text, one.text_b or "")]
        halves = [half for one in guides for half in (Guides(first=one.first), Guides(first=one.second, last=one.last))]
        encoded = sequences(sides, tokenizer, length, guides=halves)
        facts = [Part(side, 2, pooled=True) for _ in examples for side in range(2)]
        return replace(encoded, example=np.repeat(np.arange(len(examples)), 2), facts=facts)
