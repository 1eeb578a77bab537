"""How alike two texts are, by the angle between a vector of each, and which texts are nearest to another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import Count, Positive, Variant
from ..errors import BadInput
from ..metrics import scores as scores_
from ..tokenization.tokenizer import Tokenizer
from .base import Answer, Encoded, Example, Head, Scores, sequences
from .table_rows import BadRow, Kept, Row, examples, is_lines, unlabelled

Pool = Literal["mean", "first"]

AT_ONCE = 1 << 24  # cosines in memory at a time


@dataclass(frozen=True)
class Pair(Example):
    """Two texts, and how alike they are if it is known, on any scale; or, to learn from, one text, or a third unlike both."""

    text: str
    text_b: str | None = None
    score: float | None = None
    negative: str | None = None


@dataclass(frozen=True)
class Likeness(Answer):
    score: float  # cosine, from -1 to 1


class Similar(Variant, frozen=True):
    pool: Annotated[Pool, "the vector of a text: the mean of its tokens' vectors, or that of the first one"] = "mean"
    temperature: Annotated[Positive, "cosines are divided by it to tell texts apart; less is stricter with near ones"] = 0.05
    scale: Annotated[
        tuple[float, float] | None, "the scores that are cosines of 0 and 1; the lowest and highest of data.train, if none"
    ] = None
    long: Annotated[
        Literal["truncate", "hierarchical"], "texts that do not fit: cut at the end, or the mean of their windows' vectors"
    ] = "truncate"
    stride: Annotated[Count, "tokens from the start of one window to the next"] = 256
    columns: Annotated[dict[str, str], "what text, text_b, score and negative are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head: ClassVar[Head] = "text"
    outputs: ClassVar[int] = 0  # the pooled vectors themselves

    def read(self, path: Path) -> Kept[Pair]:
        """Rows of .tsv, .csv or .jsonl, pairs or single texts, with scores or without; or a .txt with a text a line."""
        found = examples(path, self._example, self.columns)
        blank = is_lines(path)
        return Kept(path, (one for one in found if not blank or isinstance(one, BadRow) or one.text.strip()), self.skip_bad)

    def fitted(self, examples: Sequence[Pair]) -> "Similar":
        """Knows the scale of its scores, if there are any; all examples must be of one kind."""
        for name in ("text_b", "score", "negative"):
            known = [getattr(one, name) is not None for one in examples]
            if any(known) and not all(known):
                odd = examples[known.index(not known[0])]
                raise BadInput(f"{odd.place} has {'no' if known[0] else 'a'} {name}, unlike those before; all must be alike")
        if not examples or examples[0].score is None or self.scale is not None:
            return self
        low, high = float(min(truths := self._truths(examples))), float(max(truths))
        if low == high:
            raise BadInput(f"{examples[0].source or 'the examples'}: every score is {low:g}; there is nothing to tell apart")
        return msgspec.structs.replace(self, scale=(low, high))

    def encode(self, examples: Sequence[Pair], tokenizer: Tokenizer, length: int) -> Encoded:
        """A sequence for each text of an example, one after the other, each cut at its end, or its windows; a single text
        comes twice.

        Targets: `texts` (examples, sides) numbers them, equal ones alike; `score`, a cosine an example, if all are known.
        """
        three = _threefold(examples)
        sides = [_sides(one)[: 2 + three] for one in examples]
        encoded = sequences([(text, None) for some in sides for text in some], tokenizer, length, self.long, self.stride)
        seen = [b""] * sum(map(len, sides))
        for side, ids in zip(encoded.example, encoded.ids, strict=True):
            seen[side] += ids.tobytes()
        numbers: dict[bytes, int] = {}
        texts = np.array([numbers.setdefault(ids, len(numbers)) for ids in seen], np.int64)
        targets: dict[str, NDArray[Any]] = {"texts": texts.reshape(len(examples), -1)} if examples else {}
        if examples and all(one.score is not None for one in examples):
            targets["score"] = self._cosines(examples)
        return replace(encoded, example=encoded.example // (2 + three), targets=targets)

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Pair]) -> list[Likeness]:
        """From a vector a text, (texts, width); a text that is unlike both is not looked at."""
        if lone := next((one for one in examples if one.text_b is None), None):
            raise BadInput(f"{lone.place} has no text_b to be compared with; vectors of single texts are made by `embed`")
        vectors = np.asarray(scores, np.float64)
        sides = 2 + _threefold(examples)
        if vectors.ndim != 2 or len(vectors) != sides * len(examples) or (examples and not vectors.shape[1]):
            raise ValueError(f"vectors of shape {vectors.shape} for {len(examples)} x {sides} texts; there must be two a pair")
        return [Likeness(score) for score in cosine(vectors[::sides], vectors[1::sides]).tolist()]

    def judge(self, answers: Sequence[Likeness], examples: Sequence[Pair]) -> dict[str, float]:
        """Correlations are nan where all answers, or all truths, are the same."""
        given, true = np.array([one.score for one in answers]), self._truths(examples)
        return {name: float(scores_.METRICS[name](given, true)) for name in ("spearman", "pearson")}

    def _example(self, row: Row) -> Pair:
        score = row.number("score")
        paired = score is not None or "text_b" in self.columns or row.get("text_b") is not None
        second = row.text("text_b") if paired else None
        third = row.text("negative") if row.get("negative") is not None else None
        if third is not None and second is None:
            raise row.bad("it has a negative, but no text_b that text is alike to")
        return Pair(row.text("text"), second, score, third, source=str(row.path), line=row.line)

    def _cosines(self, examples: Sequence[Pair]) -> NDArray[np.float32]:
        truths = self._truths(examples)
        low, high = self.scale or (truths.min(), truths.max())
        return ((truths - low) / ((high - low) or 1.0)).astype(np.float32)

    def _truths(self, examples: Sequence[Pair]) -> NDArray[np.float64]:
        for example in examples:
            if example.score is None:
                raise unlabelled(example.source, example.line, "score", self.columns)
        return np.array([example.score for example in examples], np.float64)


def _threefold(examples: Sequence[Pair]) -> bool:
    return bool(examples) and all(one.negative is not None for one in examples)


def _sides(example: Pair) -> list[str]:
    second = example.text if example.text_b is None else example.text_b
    return [example.text, second, *([] if example.negative is None else [example.negative])]


def normalised(vectors: NDArray[Any]) -> NDArray[Any]:
    """Each row of length 1; a row of zeros stays one, and is like nothing."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def cosine(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Row by row: (n, width) and (n, width) -> (n,)."""
    return np.clip((normalised(left) * normalised(right)).sum(-1), -1, 1)


def nearest(
    queries: NDArray[Any], documents: NDArray[Any], top: int = 10, chunk: int = 1 << 16
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The `top` documents likest each query, best first, of equals the earlier: numbers and cosines, (queries, top).

    Documents are gone through `chunk` at a time, so that they may be mapped from a file larger than memory.
    """
    if top < 1:
        raise BadInput(f"the {top} nearest are none; ask for one or more")
    if queries.ndim != 2 or documents.ndim != 2 or queries.shape[1] != documents.shape[1] or not len(documents):
        raise BadInput(f"queries {queries.shape} and documents {documents.shape} must be rows of one width, and some")
    step = max(1, AT_ONCE // min(chunk, len(documents)))
    blocks = [_nearest(normalised(queries[at : at + step]), documents, top, chunk) for at in range(0, len(queries), step)]
    empty = np.zeros((0, min(top, len(documents))))
    numbers, scores = zip(*blocks, strict=True) if blocks else ([empty.astype(np.int64)], [empty])
    return np.concatenate(numbers), np.concatenate(scores)


def listed(numbers: NDArray[np.int64], scores: NDArray[Any], texts: Sequence[str] | None = None) -> list[list[dict[str, Any]]]:
    """What `nearest` found, as plain values, with the documents themselves if they are texts."""
    rows = [[{"row": row, "score": score} for row, score in zip(*pair, strict=True)]
            for pair in zip(numbers.tolist(), scores.tolist(), strict=True)]  # fmt: skip
    return rows if texts is None else [[one | {"text": texts[one["row"]]} for one in row] for row in rows]


def _nearest(queries: NDArray[Any], documents: NDArray[Any], top: int, chunk: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    numbers, scores = np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), queries.dtype)
    for start in range(0, len(documents), chunk):
        found = queries @ normalised(np.asarray(documents[start : start + chunk])).T
        if not np.isfinite(found).all():
            raise BadInput(f"a vector of a query, or of documents {start:,} and on, is not finite")
        best = _best(found, top)
        numbers = np.concatenate([numbers, best + start], 1)
        scores = np.concatenate([scores, np.take_along_axis(found, best, 1)], 1)
        kept = _best(scores, top)
        numbers, scores = np.take_along_axis(numbers, kept, 1), np.take_along_axis(scores, kept, 1)
    return numbers, scores


def _best(scores: NDArray[Any], top: int) -> NDArray[np.int64]:
    """(rows, top) columns of the largest values, largest first, of equals the left: quicker than sorting whole rows."""
    columns = scores.shape[1]
    if top < columns:
        edge = np.partition(scores, columns - top, 1)[:, columns - top, None]
        above, tied = scores > edge, scores == edge
        kept = above | (tied & (tied.cumsum(1) <= top - above.sum(1, keepdims=True)))
        places = np.nonzero(kept)[1].reshape(len(scores), top)
    else:
        places = np.broadcast_to(np.arange(columns), scores.shape)
    order = np.argsort(-np.take_along_axis(scores, places, 1), 1, kind="stable")
    return np.take_along_axis(places, order, 1)
