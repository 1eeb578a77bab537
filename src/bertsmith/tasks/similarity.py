"""Text similarity: cosine similarity of sentence embeddings (Sentence-BERT, SimCSE), and semantic search with them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..config import PosFloat, PosInt
from ..errors import UserError
from ..metrics import scores as scores_
from ..metrics.results import MetricResult
from ..tokenization.tables import UTF8, preview_json
from ..tokenization.tokenizer import Tokenizer
from .base import EncodedExamples, Example, ModelOutputs, Prediction, RequestFields, Task, TaskHeadType
from .mistakes import Mistake, rank_errors, text_spans
from .sentence_pairs import PairKind, pair_sentences
from .sequences import encode_pairs
from .table_rows import ExampleReader, ExampleRow, is_plain_text, missing_label_error, read_examples

Pooling = Literal["mean", "cls"]

_BINARY_LABELS = {"0": 0.0, "0.0": 0.0, "false": 0.0, "1": 1.0, "1.0": 1.0, "true": 1.0}
QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")  # by the first name that the model has
MAX_COSINES = 1 << 24  # similarities computed at a time, to bound memory


@dataclass(frozen=True)
class SimilarityExample(Example):
    """Two texts and their similarity score, if known, on any scale; for training also a single text, or a hard negative."""

    text: str
    text_b: str | None = None
    score: float | None = None
    negative: str | None = None


@dataclass(frozen=True)
class SimilarityPrediction(Prediction):
    """Cosine similarity of the two sentence embeddings, from -1 to 1; not a probability."""

    score: float


class TextSimilarity(Task, frozen=True, tag="similar"):
    pooling: Annotated[Pooling, "sentence embedding: mean of the token vectors, or the vector of [CLS]"] = "mean"
    temperature: Annotated[PosFloat, "temperature of the contrastive loss over cosine similarities (0.05 in SimCSE)"] = 0.05
    pairs: Annotated[
        PairKind, "training pairs of a .txt: each line with itself (SimCSE), with the next, or the first two of each document"
    ] = "same"
    matryoshka_dims: Annotated[
        tuple[PosInt, ...], "sizes to which embeddings can be truncated: (64, 128, 256); the loss is the sum over them and all"
    ] = ()
    projection: Annotated[
        PosInt | None, "size of a linear layer after the pooling, trained with the rest; at first the identity; none: no layer"
    ] = None
    mini_batch_tokens: Annotated[
        PosInt, "training: larger batches are encoded in parts of so many tokens, twice, with the same gradients (GradCache)"
    ] = 16384
    center: Annotated[
        bool, "subtract the mean embedding of the training texts, as the bias of a dense layer; set after training"
    ] = False
    normalize: Annotated[bool, "scale sentence embeddings to L2 norm 1; cosine similarities are the same"] = False
    prompts: Annotated[dict[str, str], "text put before a text, by name: { query = 'query: ' } (sentence-transformers)"] = (
        msgspec.field(default_factory=dict)
    )
    default_prompt_name: Annotated[str | None, "prompt of every text for which no other is named; none: none"] = None
    scale: Annotated[tuple[float, float] | None, "scores that map to cosine 0 and 1; by default the range of data.train"] = None
    long_text: Annotated[
        Literal["truncate", "hierarchical"], "texts over max_length: truncate, or hierarchical (mean of the windows' vectors)"
    ] = "truncate"
    doc_stride: Annotated[PosInt, "tokens between the starts of consecutive windows"] = 256
    columns: Annotated[dict[str, str], "column names of text, text_b, score and negative in the files"] = msgspec.field(
        default_factory=dict
    )
    skip_bad: Annotated[bool, "skip invalid rows and count them, instead of stopping with an error"] = False

    head_type: ClassVar[TaskHeadType] = "embedding"
    examples_per_batch: ClassVar[int] = 64  # the other examples of a batch are negatives
    num_outputs: ClassVar[int] = 0
    metric_names: ClassVar[tuple[str, ...]] = ("spearman", "pearson")
    mistake_order: ClassVar[str] = "those with the largest rank difference"
    groups_sequences: ClassVar[bool] = True
    label_fields: ClassVar[tuple[str, ...]] = ("score", "negative")
    unsupported: ClassVar[Mapping[str, str]] = {
        "features": "which has no task head to read them (set task.pooling instead)",
        **dict.fromkeys(("aux_lm_weight", "rdrop", "train.gradual_unfreezing"), "which has no task head"),
    }

    def find_prompt(self, name: str | None = None) -> str:
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            known = f"choose from {', '.join(self.prompts)}" if self.prompts else "this model has no prompts"
            raise UserError(f"prompt_name={name} is not known; {known}")
        return "" if name is None else self.prompts[name]

    @property
    def search_prompts(self) -> tuple[str | None, str | None]:
        """The names that sentence-transformers' encode_query and encode_document choose."""
        query, document = (
            next((name for name in names if name in self.prompts), None) for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS)
        )
        return query, document

    @property
    def embedding_options(self) -> dict[str, Any]:
        return {"long_text": self.long_text, "stride": self.doc_stride}

    def export_notes(self) -> list[str]:
        is_whole = self.long_text == "truncate"
        return [] if is_whole else [f"long_text = {self.long_text} is not exported: texts over max_seq_length are truncated"]

    def read(self, path: Path, encoding: str = UTF8) -> ExampleReader[SimilarityExample]:
        """Rows of .tsv, .csv or .jsonl, pairs or single texts, with or without scores; or a .txt with one text per line."""
        examples = read_examples(path, self.parse_row, self.columns, encoding=encoding)
        return ExampleReader(path, pair_sentences(examples, self.pairs) if is_plain_text(path) else examples, self.skip_bad)

    def fit(self, examples: Sequence[SimilarityExample]) -> "TextSimilarity":
        """With the range of the scores, if there are any; all examples must have the same fields."""
        for name in ("text_b", "score", "negative"):
            has_field = [getattr(example, name) is not None for example in examples]
            if any(has_field) and not all(has_field):
                mismatch = examples[has_field.index(not has_field[0])]
                raise UserError(
                    f"{mismatch.location} has {'no' if has_field[0] else 'a'} {name}, unlike the examples before it; "
                    f"give {name} for all examples or for none"
                )
        if not examples or examples[0].score is None or self.scale is not None:
            return self
        low, high = float(min(gold := self._gold_scores(examples))), float(max(gold))
        if low == high:
            raise UserError(f"{examples[0].source or 'the examples'}: every score is {low:g}; training needs different scores")
        return msgspec.structs.replace(self, scale=(low, high))

    def encode(self, examples: Sequence[SimilarityExample], tokenizer: Tokenizer, max_length: int) -> EncodedExamples:
        """One sequence per text of an example (or its windows), in order, truncated; a single text is encoded twice.

        Targets: `texts`, (examples, 2 or 3) text ids, equal for equal texts; `score`, (examples,) cosine targets, if known.
        """
        has_negatives, prompt = _has_negatives(examples), self.find_prompt()
        example_texts = [_example_texts(example)[: 2 + has_negatives] for example in examples]
        encoded = encode_pairs(
            [(prompt + text, None) for texts_of_example in example_texts for text in texts_of_example],
            tokenizer,
            max_length,
            self.long_text,
            self.doc_stride,
        )
        text_keys = [b""] * sum(map(len, example_texts))
        for text_index, token_ids in zip(encoded.example_index, encoded.input_ids, strict=True):
            text_keys[text_index] += token_ids.tobytes()
        key_to_id: dict[bytes, int] = {}
        text_ids = np.array([key_to_id.setdefault(token_ids, len(key_to_id)) for token_ids in text_keys], np.int64)
        targets: dict[str, NDArray[Any]] = {"texts": text_ids.reshape(len(examples), -1)} if examples else {}
        if examples and all(example.score is not None for example in examples):
            targets["score"] = self._gold_cosines(examples)
        return replace(encoded, example_index=encoded.example_index // (2 + has_negatives), targets=targets)

    def decode(
        self, outputs: ModelOutputs, encoded: EncodedExamples, examples: Sequence[SimilarityExample]
    ) -> list[SimilarityPrediction]:
        """`outputs` are the vectors of all texts, (texts, hidden_size); negatives are ignored."""
        if single := next((example for example in examples if example.text_b is None), None):
            raise UserError(f"{single.location} has no text_b to compare with; `bertsmith embed` gives vectors of single texts")
        vectors = np.asarray(outputs, np.float64)
        texts_per_example = 2 + _has_negatives(examples)
        if vectors.ndim != 2 or len(vectors) != texts_per_example * len(examples) or (examples and not vectors.shape[1]):
            raise ValueError(f"vectors of shape {vectors.shape} for {len(examples)} examples of {texts_per_example} texts each")
        return [
            SimilarityPrediction(score)
            for score in cosine_similarity(vectors[::texts_per_example], vectors[1::texts_per_example]).tolist()
        ]

    def compute_metric_results(
        self, predictions: Sequence[SimilarityPrediction], examples: Sequence[SimilarityExample]
    ) -> dict[str, MetricResult]:
        """spearman and pearson correlation; nan if all predictions or all scores are equal."""
        scores, gold = np.array([prediction.score for prediction in predictions]), self._gold_scores(examples)
        return {name: MetricResult(scores_.METRICS[name], scores, gold) for name in self.metric_names}

    def check_scorable(self, examples: Sequence[SimilarityExample], path: str) -> None:
        if any(example.score is None for example in examples):
            raise UserError(f"{path} cannot be used for evaluation: every example needs a score")
        self.fit(examples)

    def find_mistakes(
        self, predictions: Sequence[SimilarityPrediction], examples: Sequence[SimilarityExample]
    ) -> list[Mistake]:
        """Every prediction, by its difference of ranks, since cosines and gold scores are on different scales."""
        predicted, gold = np.array([prediction.score for prediction in predictions]), self._gold_scores(examples)
        errors = rank_errors(scores_.average_ranks(predicted), scores_.average_ranks(gold))
        return [
            Mistake("rank", example.location, f"{g:.4g}", f"{p:.4g}", None, float(error), text_spans(example.texts))
            for p, g, error, example in zip(predicted, gold, errors, examples, strict=True)
        ]

    def sequence_length(self, text_lengths: Sequence[int]) -> int:
        return max(text_lengths) + 2

    def request_fields(self, names: Collection[str] = ()) -> RequestFields:
        return RequestFields(("text", "text_b"), (), 'model("a fine film", "a good film")')

    def parse_row(self, row: ExampleRow) -> SimilarityExample:
        score = row.get_number("score")
        if score is None and (label := row.get("label")) is not None:
            score = _score_of_label(row, label)
        is_pair = score is not None or "text_b" in self.columns or row.get("text_b") is not None
        second = row.get_text("text_b") if is_pair else None
        negative = row.get_text("negative") if row.get("negative") is not None else None
        if negative is not None and second is None:
            raise row.error("it has a negative, but no text_b as the positive")
        text = row.get_text("text")
        return SimilarityExample(text, second, score, negative, source=str(row.path), line=row.line, id=row.id)

    def _gold_cosines(self, examples: Sequence[SimilarityExample]) -> NDArray[np.float32]:
        scores = self._gold_scores(examples)
        low, high = self.scale or (scores.min(), scores.max())
        return ((scores - low) / ((high - low) or 1.0)).astype(np.float32)

    def _gold_scores(self, examples: Sequence[SimilarityExample]) -> NDArray[np.float64]:
        for example in examples:
            if example.score is None:
                raise missing_label_error(example.source, example.line, "score", self.columns)
        return np.array([example.score for example in examples], np.float64)


def normalize_rows(vectors: NDArray[Any]) -> NDArray[Any]:
    """Rows scaled to L2 norm 1; a row of zeros stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def cosine_similarity(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Cosine similarity of corresponding rows: (n, dim), (n, dim) -> (n,)."""
    return np.clip((normalize_rows(left) * normalize_rows(right)).sum(-1), -1, 1)


def semantic_search(
    queries: NDArray[Any], documents: NDArray[Any], top_k: int = 10, chunk_size: int = 1 << 16
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Indices and cosine similarities of the `top_k` nearest documents of each query, best first: (queries, top_k) each.

    Ties go to the earlier document. Documents are processed in chunks, so that they can be a memmap larger than memory.
    """
    if top_k < 1:
        raise UserError(f"top_k={top_k} is not a number of results; give 1 or more")
    if queries.ndim != 2 or documents.ndim != 2 or queries.shape[1] != documents.shape[1] or not len(documents):
        raise UserError(
            f"queries {queries.shape} and documents {documents.shape} must be non-empty matrices of the same vector size"
        )
    step = max(1, MAX_COSINES // min(chunk_size, len(documents)))
    blocks = [
        _search(normalize_rows(queries[start : start + step]), documents, top_k, chunk_size)
        for start in range(0, len(queries), step)
    ]
    empty = np.zeros((0, min(top_k, len(documents))))
    indices, scores = zip(*blocks, strict=True) if blocks else ([empty.astype(np.int64)], [empty])
    return np.concatenate(indices), np.concatenate(scores)


def to_hits(indices: NDArray[np.int64], scores: NDArray[Any], texts: Sequence[str] | None = None) -> list[list[dict[str, Any]]]:
    """Results of `semantic_search` as sentence-transformers gives them, `[[{"corpus_id": 12, "score": 0.83}, ...], ...]`.

    `corpus_id` is the index of the document, `score` the cosine similarity; with `texts` also the `text` of the document.
    """
    rows = [[{"corpus_id": index, "score": score} for index, score in zip(*pair, strict=True)]
            for pair in zip(indices.tolist(), scores.tolist(), strict=True)]  # fmt: skip
    return rows if texts is None else [[hit | {"text": texts[hit["corpus_id"]]} for hit in hits] for hits in rows]


def _score_of_label(row: ExampleRow, label: Any) -> float:
    """0 or 1 of a row with a binary label instead of a score; any other label is an error rather than ignored."""
    if isinstance(label, bool | float | int | str) and (text := str(label).strip().lower()) in _BINARY_LABELS:
        return _BINARY_LABELS[text]
    raise row.error(f"label is {preview_json(label)}, which task=similar cannot use: give a score, or the labels 0 and 1 "
                   "(different, same), or name the column of scores by columns.score=... (data.columns.score=...)")  # fmt: skip


def _has_negatives(examples: Sequence[SimilarityExample]) -> bool:
    return bool(examples) and all(example.negative is not None for example in examples)


def _example_texts(example: SimilarityExample) -> list[str]:
    second = example.text if example.text_b is None else example.text_b
    return [example.text, second, *([] if example.negative is None else [example.negative])]


def _search(
    queries: NDArray[Any], documents: NDArray[Any], top_k: int, chunk_size: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    indices, scores = np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), queries.dtype)
    for start in range(0, len(documents), chunk_size):
        similarities = queries @ normalize_rows(np.asarray(documents[start : start + chunk_size])).T
        if not np.isfinite(similarities).all():
            raise UserError(f"a query vector, or a document vector from row {start:,} on, has NaN or infinite values")
        best = _top_k_columns(similarities, top_k)
        indices = np.concatenate([indices, best + start], 1)
        scores = np.concatenate([scores, np.take_along_axis(similarities, best, 1)], 1)
        order = _top_k_columns(scores, top_k)
        indices, scores = np.take_along_axis(indices, order, 1), np.take_along_axis(scores, order, 1)
    return indices, scores


def _top_k_columns(scores: NDArray[Any], top_k: int) -> NDArray[np.int64]:
    """(rows, top_k) columns of the largest values, descending, ties to the left; faster than sorting whole rows."""
    num_columns = scores.shape[1]
    if top_k < num_columns:
        threshold = np.partition(scores, num_columns - top_k, 1)[:, num_columns - top_k, None]
        above, tied = scores > threshold, scores == threshold
        selected = above | (tied & (tied.cumsum(1) <= top_k - above.sum(1, keepdims=True)))
        top = np.nonzero(selected)[1].reshape(len(scores), top_k)
    else:
        top = np.broadcast_to(np.arange(num_columns), scores.shape)
    order = np.argsort(-np.take_along_axis(scores, top, 1), 1, kind="stable")
    return np.take_along_axis(top, order, 1)
