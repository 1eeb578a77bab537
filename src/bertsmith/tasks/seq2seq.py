"""Written ids as a text: special tokens left out, and no space between ideographs that no space parted."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import Amount, Chance, Count, Variant
from ..metrics import scores as scores_
from ..tokenization.tokenizer import Tokenizer
from .base import Answer, Encoded, Example, Head, Scores, ids_of
from .scorers.rouge import rouge
from .table_rows import Kept, Row, examples, unlabelled

# Ideographs, kana and full-width signs: WordPiece puts spaces around each, which no Chinese text has.
_WIDE = "\u2e80-\u30ff\u31c0-\u31ef\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_GAPS = re.compile(f"(?<=[{_WIDE}]) +| +(?=[{_WIDE}])")


class Spelling:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        kept = np.asarray(ids, np.int64)
        text = self.tokenizer.decode(kept[~self.tokenizer.special[kept]].tolist())
        return (text if self.tokenizer.marks_starts == "Ġ" else _GAPS.sub("", text)).strip()


Cutting = Literal["13a", "intl", "zh", "char", "none"]


@dataclass(frozen=True)
class Couple(Example):
    """A text, and the one that answers it if it is known; in a file they are `source` and `target`."""

    text: str
    target: str | None = None


@dataclass(frozen=True)
class Reply(Answer):
    text: str


class Generate(Variant, frozen=True):
    beam: Annotated[Count, "texts kept at every length while it writes; 1: always the likeliest token"] = 4
    alpha: Annotated[Amount, "log-probabilities are divided by ((5 + tokens) / 6)^alpha; more favours longer answers"] = 0.6
    longest: Annotated[Count, "tokens of an answer at most, to learn and to write"] = 128
    smoothing: Annotated[Chance, "share of each target that is spread over all words while it learns (label smoothing)"] = 0.1
    words: Annotated[Cutting, "how sacreBLEU cuts words: 13a for most languages, zh or char for Chinese"] = "13a"
    lowercase: Annotated[bool, "judge capitals and small letters alike, as of a model that knows no capitals"] = False
    columns: Annotated[dict[str, str], "what source and target are called in the files"] = msgspec.field(default_factory=dict)
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head: ClassVar[Head] = "text"
    outputs: ClassVar[int] = 0  # a word at a time, by the head for words

    def read(self, path: Path) -> Kept[Couple]:
        """Rows of .tsv, .csv or .jsonl, with `target` or without; or a .txt with a source a line."""
        return Kept(path, examples(path, self._example, self.columns), self.skip_bad)

    def fitted(self, examples: Sequence[Couple]) -> "Generate":
        """As it is: there is nothing to learn but that every example has its target."""
        self._targets(examples)
        return self

    def encode(self, examples: Sequence[Couple], tokenizer: Tokenizer, length: int) -> Encoded:
        """[CLS] source [SEP], cut at `length`. Targets, where all are known: `reply`, the ids of all answers one after
        another, [CLS] answer [SEP] each, and `size`, how many each has."""
        ids = [
            np.array([tokenizer.cls, *one[: length - 2], tokenizer.sep], np.int64)
            for one in ids_of([e.text for e in examples], tokenizer)
        ]
        targets: dict[str, NDArray[np.int64]] = {}
        if examples and all(one.target is not None for one in examples):
            known = ids_of(self._targets(examples), tokenizer)
            replies = [[tokenizer.cls, *one[: self.longest - 1], tokenizer.sep] for one in known]
            targets["reply"] = np.concatenate([np.array(one, np.int64) for one in replies])
            targets["size"] = np.array([len(one) for one in replies], np.int64)
        facts = [Spelling(tokenizer)] * len(ids)
        return Encoded(ids, [np.zeros(len(one), np.int64) for one in ids], np.arange(len(ids)), targets, facts)

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Couple]) -> list[Reply]:
        """From the ids that were written for each example."""
        return [Reply(spelling(ids)) for spelling, ids in zip(encoded.facts, scores, strict=True)]

    def judge(self, answers: Sequence[Reply], examples: Sequence[Couple]) -> dict[str, float]:
        """sacreBLEU and chrF of all together, the means of ROUGE, and the shares that are equal, or equally long."""
        said, true = self.texts(answers, examples)
        scores = {"bleu": float(scores_.bleu(scores_.bleu_counts(said, true, self.words), np.zeros(len(true))))}
        scores["chrf"] = scores_.chrf(said, true)
        return scores | {name: float(values.mean()) for name, values in self.each(answers, examples).items()}

    def each(self, answers: Sequence[Reply], examples: Sequence[Couple]) -> dict[str, NDArray[np.float64]]:
        """What each answer is worth, for the scores that are means."""
        pairs = list(zip(*self.texts(answers, examples), strict=True))
        table = np.array([rouge(*pair) for pair in pairs], np.float64).reshape(-1, 3)
        found = {name: table[:, column] for column, name in enumerate(("rouge1", "rouge2", "rougeL"))}
        found["exact"] = np.array([said.split() == true.split() for said, true in pairs], np.float64)
        found["length"] = np.array([_size(said) == _size(true) for said, true in pairs], np.float64)
        return found

    def texts(self, answers: Sequence[Reply], examples: Sequence[Couple]) -> tuple[list[str], list[str]]:
        """What was said and what is true, as they are compared."""
        said, true = [one.text for one in answers], self._targets(examples)
        return ([one.lower() for one in said], [one.lower() for one in true]) if self.lowercase else (said, true)

    def _example(self, row: Row) -> Couple:
        plain = "source" not in self.columns and row.get("source") is None and row.get("text") is not None
        target = row.text("target") if row.get("target") is not None else None
        return Couple(row.text("text" if plain else "source"), target, source=str(row.path), line=row.line)

    def _targets(self, examples: Sequence[Couple]) -> list[str]:
        for example in examples:
            if example.target is None:
                raise unlabelled(example.source, example.line, "target", self.columns)
        return [str(example.target) for example in examples]


def _size(text: str) -> int:
    """Characters, spaces not counted."""
    return len("".join(text.split()))
