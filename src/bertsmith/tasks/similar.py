"""How alike two texts are, by the angle between a vector of each, and which texts are nearest to another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..config import Variant
from ..errors import BadInput
from ..text.tokenizer import Tokenizer
from .base import Answer, Encoded, Example, Head, Part, Scores, sequences
from .kept import Kept
from .tables import Row, examples, unlabelled

AT_ONCE = 1 << 24  # cosines in memory at a time


@dataclass(frozen=True)
class Pair(Example):
    """Two texts, and how alike they are if it is known, on any scale."""

    text: str
    text_b: str
    score: float | None = None


@dataclass(frozen=True)
class Likeness(Answer):
    score: float  # cosine, from -1 to 1


class Similar(Variant, frozen=True):
    columns: Annotated[dict[str, str], "what text, text_b and score are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head: ClassVar[Head] = "text"
    outputs: ClassVar[int] = 0  # the pooled vectors themselves

    def read(self, path: Path) -> Kept[Pair]:
        """Rows of .tsv, .csv or .jsonl; pairs without a score are alike, or not yet judged."""
        return Kept(path, examples(path, self._example, self.columns), self.skip_bad)

    def fitted(self, examples: Sequence[Pair]) -> "Similar":
        """Itself: pairs with and without scores can both be learnt from."""
        return self

    def encode(self, examples: Sequence[Pair], tokenizer: Tokenizer, length: int) -> Encoded:
        """Two sequences an example, one after the other, each cut at its end; targets `score`: a number an example."""
        encoded = sequences([(text, None) for one in examples for text in (one.text, one.text_b)], tokenizer, length)
        facts = [Part(side, 2) for _ in examples for side in range(2)]
        known = bool(examples) and all(one.score is not None for one in examples)
        targets = {"score": self._truths(examples).astype(np.float32)} if known else {}
        return replace(encoded, example=np.repeat(np.arange(len(examples)), 2), facts=facts, targets=targets)

    def decode(self, scores: Scores, encoded: Encoded, examples: Sequence[Pair]) -> list[Likeness]:
        """From a vector a sequence, (sequences, width)."""
        vectors = np.asarray(scores, np.float64)
        if vectors.ndim != 2 or len(vectors) != 2 * len(examples) or (examples and not vectors.shape[1]):
            raise ValueError(f"vectors of shape {vectors.shape} for {len(examples)} pairs; there must be two a pair")
        return [Likeness(score) for score in cosine(vectors[::2], vectors[1::2]).tolist()]

    def judge(self, answers: Sequence[Likeness], examples: Sequence[Pair]) -> dict[str, float]:
        """Correlations are nan where all answers, or all truths, are the same."""
        given, true = np.array([one.score for one in answers]), self._truths(examples)
        return {name: float(metrics.METRICS[name](given, true)) for name in ("spearman", "pearson")}

    def _example(self, row: Row) -> Pair:
        return Pair(row.text("text"), row.text("text_b"), row.number("score"), source=str(row.path), line=row.line)

    def _truths(self, examples: Sequence[Pair]) -> NDArray[np.float64]:
        for example in examples:
            if example.score is None:
                raise unlabelled(example.source, example.line, "score", self.columns)
        return np.array([example.score for example in examples], np.float64)


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
