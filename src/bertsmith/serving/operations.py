"""What a model can be asked: operations on a batch of items for the scheduler, and which of them a model can do."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..inference.predictor import Predictor
from ..tasks.similarity import Pooling, normalize_rows
from .errors import InvalidRequest
from .scheduler import Operation

Floats = NDArray[np.float32]


def task_name(predictor: Predictor) -> str | None:
    return None if predictor.task is None else str(predictor.task.__struct_config__.tag)


def can_fill(predictor: Predictor) -> bool:
    """A masked language model that was not fine-tuned."""
    return predictor.task is None and not predictor.is_causal_lm and "lm" in predictor.engine.facts.heads


def can_generate(predictor: Predictor) -> bool:
    return predictor.default_search is not None


def can_classify(predictor: Predictor) -> bool:
    return task_name(predictor) in ("classify", "regress")


def can_rerank(predictor: Predictor) -> bool:
    """A cross-encoder: one score for a pair of texts, by regression or by a classifier of two labels."""
    name, labels = task_name(predictor), predictor.labels
    return name == "regress" or (name == "classify" and len(labels) == 2)


def can_embed(predictor: Predictor) -> bool:
    """Any encoder has sentence vectors; those of a fine-tuned classifier are of little use, so it is asked only by name."""
    return not predictor.engine.facts.has_decoder


def suits_embedding(predictor: Predictor) -> bool:
    return can_embed(predictor) and task_name(predictor) in (None, "similar")


def embed(predictor: Predictor, pooling: Pooling | None = None, prompt_name: str | None = None) -> Operation:
    key = ("embed", id(predictor), pooling, prompt_name)
    return Operation(key, lambda texts: list(predictor.embed(texts, pooling, prompt_name=prompt_name)))


def embed_ids(predictor: Predictor) -> Operation:
    """Vectors of token ids, to which [CLS] and [SEP] are added."""
    special = predictor.tokenizer.cls_token_id, predictor.tokenizer.sep_token_id

    def compute(sequences: list[list[int]]) -> list[Floats]:
        framed = [np.array([special[0], *ids, special[1]], np.int64) for ids in sequences]
        vectors: list[Any] = [None] * len(framed)
        for batch in predictor.engine.batch_by_length(np.array([len(ids) for ids in framed], np.int64)):
            rows = predictor.engine.embed([framed[i] for i in batch], predictor.pooling)
            for index, row in zip(batch.tolist(), rows, strict=True):
                vectors[index] = row
        return vectors

    return Operation(("embed_ids", id(predictor)), compute)


def hidden_states(predictor: Predictor) -> Operation:
    """`TokenVectors` of each text."""
    return Operation(("hidden_states", id(predictor)), lambda texts: predictor.hidden_states(texts))


def predict(predictor: Predictor, top_k: int | None = None) -> Operation:
    """Answers to examples of the model's task."""
    task = predictor.require_task()

    def compute(examples: list[Any]) -> list[Any]:
        predictions = predictor.predict_examples(examples)
        return [task.to_answer(*pair, top_k) for pair in zip(predictions, examples, strict=True)]

    return Operation(("predict", id(predictor), top_k), compute)


def fill(predictor: Predictor, top_k: int, candidates: tuple[str, ...] | None, iterative: bool) -> Operation:
    return Operation(
        ("fill", id(predictor), top_k, candidates, iterative),
        lambda texts: predictor.fill(texts, top_k, candidates, iterative),
    )


def generate(predictor: Predictor, kind: str, search: dict[str, Any]) -> Operation:
    """Continuations; a batch has texts of one request only, since sampling numbers the copies of a text in a call."""
    if predictor.task is not None:
        if kind != "greedy" or search:
            raise InvalidRequest(
                "a model with task=generate decodes with the settings of its folder; leave kind and others out"
            )
        return predict(predictor)
    return Operation(object(), lambda texts: predictor.generate(texts, kind, **search))


def next_piece() -> Operation:
    """The next piece of each text that is being generated, None at its end; items are functions that return it."""
    return Operation(object(), lambda functions: [function() for function in functions])


def truncate_dimensions(vectors: Sequence[Floats], dimensions: int | None, normalize: bool) -> Floats:
    """(texts, dimensions): the first dimensions of each vector, to length 1 again where that is asked."""
    matrix = np.stack(vectors).astype(np.float32)
    if dimensions is not None:
        if not 1 <= dimensions <= matrix.shape[1]:
            raise InvalidRequest(f"dimensions={dimensions} is not between 1 and {matrix.shape[1]}, the size of the vectors")
        matrix = matrix[:, :dimensions]
    return normalize_rows(matrix) if normalize else matrix


def positive_score(predictor: Predictor, answer: Any) -> float:
    """The score of a cross-encoder's answer: the number, or the probability of the positive label (else the last one)."""
    if "scores" not in answer:
        return float(answer["score"])
    label = getattr(predictor.task, "positive", None) or predictor.labels[-1]
    return float(answer["scores"][label])
