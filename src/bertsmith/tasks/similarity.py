"""How alike two texts are, by the angle between a vector of each, and which texts are nearest to another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosFloat, PosInt, Variant
from ..errors import UserError
from ..metrics import scores as scores_
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, Example, ModelOutputs, Prediction, TaskHeadType, encode_pairs
from .table_rows import BadRow, ExampleReader, ExampleRow, is_plain_text, missing_label_error, read_examples

Pooling = Literal["mean", "first"]

MAX_COSINES = 1 << 24  # cosines in memory at a time


@dataclass(frozen=True)
class SimilarityExample(Example):
    """Two texts, and how alike they are if it is known, on any scale; or, to learn from, one text, or a third unlike both."""

    text: str
    text_b: str | None = None
    score: float | None = None
    negative: str | None = None


@dataclass(frozen=True)
class SimilarityPrediction(Prediction):
    score: float  # cosine, from -1 to 1


class TextSimilarity(Variant, frozen=True, tag="similar"):
    pool: Annotated[Pooling, "the vector of a text: the mean of its tokens' vectors, or that of the first one"] = "mean"
    temperature: Annotated[PosFloat, "cosines are divided by it to tell texts apart; less is stricter with near ones"] = 0.05
    scale: Annotated[
        tuple[float, float] | None, "the scores that are cosines of 0 and 1; the lowest and highest of data.train, if none"
    ] = None
    long: Annotated[
        Literal["truncate", "hierarchical"], "texts that do not fit: cut at the end, or the mean of their windows' vectors"
    ] = "truncate"
    stride: Annotated[PosInt, "tokens from the start of one window to the next"] = 256
    columns: Annotated[dict[str, str], "what text, text_b, score and negative are called in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False

    head_type: ClassVar[TaskHeadType] = "text"
    num_outputs: ClassVar[int] = 0  # the pooled vectors themselves

    def read(self, path: Path) -> ExampleReader[SimilarityExample]:
        """Rows of .tsv, .csv or .jsonl, pairs or single texts, with scores or without; or a .txt with a text a line."""
        found = read_examples(path, self._parse_row, self.columns)
        blank = is_plain_text(path)
        return ExampleReader(
            path, (one for one in found if not blank or isinstance(one, BadRow) or one.text.strip()), self.skip_bad
        )

    def fit(self, examples: Sequence[SimilarityExample]) -> "TextSimilarity":
        """Knows the scale of its scores, if there are any; all examples must be of one kind."""
        for name in ("text_b", "score", "negative"):
            known = [getattr(one, name) is not None for one in examples]
            if any(known) and not all(known):
                odd = examples[known.index(not known[0])]
                raise UserError(
                    f"{odd.location} has {'no' if known[0] else 'a'} {name}, unlike those before; all must be alike"
                )
        if not examples or examples[0].score is None or self.scale is not None:
            return self
        low, high = float(min(truths := self._gold_scores(examples))), float(max(truths))
        if low == high:
            raise UserError(f"{examples[0].source or 'the examples'}: every score is {low:g}; there is nothing to tell apart")
        return msgspec.structs.replace(self, scale=(low, high))

    def encode(self, examples: Sequence[SimilarityExample], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """A sequence for each text of an example, one after the other, each cut at its end, or its windows; a single text
        comes twice.

        Targets: `texts` (examples, sides) numbers them, equal ones alike; `score`, a cosine an example, if all are known.
        """
        three = _has_negatives(examples)
        sides = [_example_texts(one)[: 2 + three] for one in examples]
        encoded = encode_pairs([(text, None) for some in sides for text in some], tokenizer, max_length, self.long, self.stride)
        seen = [b""] * sum(map(len, sides))
        for side, ids in zip(encoded.example_index, encoded.input_ids, strict=True):
            seen[side] += ids.tobytes()
        numbers: dict[bytes, int] = {}
        texts = np.array([numbers.setdefault(ids, len(numbers)) for ids in seen], np.int64)
        targets: dict[str, NDArray[Any]] = {"texts": texts.reshape(len(examples), -1)} if examples else {}
        if examples and all(one.score is not None for one in examples):
            targets["score"] = self._gold_cosines(examples)
        return replace(encoded, example_index=encoded.example_index // (2 + three), targets=targets)

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[SimilarityExample]
    ) -> list[SimilarityPrediction]:
        """From a vector a text, (texts, width); a text that is unlike both is not looked at."""
        if lone := next((one for one in examples if one.text_b is None), None):
            raise UserError(f"{lone.location} has no text_b to be compared with; vectors of single texts are made by `embed`")
        vectors = np.asarray(outputs, np.float64)
        sides = 2 + _has_negatives(examples)
        if vectors.ndim != 2 or len(vectors) != sides * len(examples) or (examples and not vectors.shape[1]):
            raise ValueError(f"vectors of shape {vectors.shape} for {len(examples)} x {sides} texts; there must be two a pair")
        return [SimilarityPrediction(score) for score in cosine_similarity(vectors[::sides], vectors[1::sides]).tolist()]

    def compute_metrics(
        self, predictions: Sequence[SimilarityPrediction], examples: Sequence[SimilarityExample]
    ) -> dict[str, float]:
        """Correlations are nan where all answers, or all truths, are the same."""
        given, true = np.array([one.score for one in predictions]), self._gold_scores(examples)
        return {name: float(scores_.METRICS[name](given, true)) for name in ("spearman", "pearson")}

    def _parse_row(self, row: ExampleRow) -> SimilarityExample:
        score = row.get_number("score")
        paired = score is not None or "text_b" in self.columns or row.get("text_b") is not None
        second = row.get_text("text_b") if paired else None
        third = row.get_text("negative") if row.get("negative") is not None else None
        if third is not None and second is None:
            raise row.error("it has a negative, but no text_b that text is alike to")
        return SimilarityExample(row.get_text("text"), second, score, third, source=str(row.path), line=row.line)

    def _gold_cosines(self, examples: Sequence[SimilarityExample]) -> NDArray[np.float32]:
        truths = self._gold_scores(examples)
        low, high = self.scale or (truths.min(), truths.max())
        return ((truths - low) / ((high - low) or 1.0)).astype(np.float32)

    def _gold_scores(self, examples: Sequence[SimilarityExample]) -> NDArray[np.float64]:
        for example in examples:
            if example.score is None:
                raise missing_label_error(example.source, example.line, "score", self.columns)
        return np.array([example.score for example in examples], np.float64)


def _has_negatives(examples: Sequence[SimilarityExample]) -> bool:
    return bool(examples) and all(one.negative is not None for one in examples)


def _example_texts(example: SimilarityExample) -> list[str]:
    second = example.text if example.text_b is None else example.text_b
    return [example.text, second, *([] if example.negative is None else [example.negative])]


def normalize_rows(vectors: NDArray[Any]) -> NDArray[Any]:
    """Each row of length 1; a row of zeros stays one, and is like nothing."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def cosine_similarity(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Row by row: (n, width) and (n, width) -> (n,)."""
    return np.clip((normalize_rows(left) * normalize_rows(right)).sum(-1), -1, 1)


def semantic_search(
    queries: NDArray[Any], documents: NDArray[Any], top_k: int = 10, chunk_size: int = 1 << 16
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The `top` documents likest each query, best first, of equals the earlier: numbers and cosines, (queries, top).

    Documents are gone through `chunk` at a time, so that they may be mapped from a file larger than memory.
    """
    if top_k < 1:
        raise UserError(f"the {top_k} nearest are none; ask for one or more")
    if queries.ndim != 2 or documents.ndim != 2 or queries.shape[1] != documents.shape[1] or not len(documents):
        raise UserError(f"queries {queries.shape} and documents {documents.shape} must be rows of one width, and some")
    step = max(1, MAX_COSINES // min(chunk_size, len(documents)))
    blocks = [
        _search(normalize_rows(queries[at : at + step]), documents, top_k, chunk_size) for at in range(0, len(queries), step)
    ]
    empty = np.zeros((0, min(top_k, len(documents))))
    numbers, scores = zip(*blocks, strict=True) if blocks else ([empty.astype(np.int64)], [empty])
    return np.concatenate(numbers), np.concatenate(scores)


def to_hits(indices: NDArray[np.int64], scores: NDArray[Any], texts: Sequence[str] | None = None) -> list[list[dict[str, Any]]]:
    """What `nearest` found, as plain values, with the documents themselves if they are texts."""
    rows = [[{"row": row, "score": score} for row, score in zip(*pair, strict=True)]
            for pair in zip(indices.tolist(), scores.tolist(), strict=True)]  # fmt: skip
    return rows if texts is None else [[one | {"text": texts[one["row"]]} for one in row] for row in rows]


def _search(
    queries: NDArray[Any], documents: NDArray[Any], top_k: int, chunk_size: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    numbers, scores = np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), queries.dtype)
    for start in range(0, len(documents), chunk_size):
        found = queries @ normalize_rows(np.asarray(documents[start : start + chunk_size])).T
        if not np.isfinite(found).all():
            raise UserError(f"a vector of a query, or of documents {start:,} and on, is not finite")
        best = _top_k_columns(found, top_k)
        numbers = np.concatenate([numbers, best + start], 1)
        scores = np.concatenate([scores, np.take_along_axis(found, best, 1)], 1)
        kept = _top_k_columns(scores, top_k)
        numbers, scores = np.take_along_axis(numbers, kept, 1), np.take_along_axis(scores, kept, 1)
    return numbers, scores


def _top_k_columns(scores: NDArray[Any], top_k: int) -> NDArray[np.int64]:
    """(rows, top) columns of the largest values, largest first, of equals the left: quicker than sorting whole rows."""
    columns = scores.shape[1]
    if top_k < columns:
        edge = np.partition(scores, columns - top_k, 1)[:, columns - top_k, None]
        above, tied = scores > edge, scores == edge
        kept = above | (tied & (tied.cumsum(1) <= top_k - above.sum(1, keepdims=True)))
        places = np.nonzero(kept)[1].reshape(len(scores), top_k)
    else:
        places = np.broadcast_to(np.arange(columns), scores.shape)
    order = np.argsort(-np.take_along_axis(scores, places, 1), 1, kind="stable")
    return np.take_along_axis(places, order, 1)
