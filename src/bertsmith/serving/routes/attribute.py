"""Which words an answer depends on: /models/{name}/attribute, by leaving out one word at a time.

The attribution of a word is the score of the answer minus its score without the word (occlusion; Zeiler and Fergus 2014, Li et
al. 2016). It needs forward passes only, so that every engine can compute it.
"""

from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request

from ...inference.predictor import Predictor
from ...tasks.words import sentence_from_text
from .. import operations
from ..endpoints import Endpoint
from ..errors import InvalidRequest, TooLarge, Unsupported
from ..requests import Truncate, fit_examples, read_body
from ..service import Service

METHOD = "leave-one-word-out"
FIELDS = ("text", "text_b")
MAX_WORDS = 1000


class AttributeBody(msgspec.Struct):
    """A text, or the fields of a pair; `label`: whose score is explained, by default that of the answer."""

    inputs: str | dict[str, Any]
    label: str | None = None
    truncate: Truncate = False


class WordAttribution(msgspec.Struct):
    """Characters [start, end) of a field, and by how much the word raises the score."""

    field: str
    word: str
    start: int
    end: int
    score: float


class Attribution(msgspec.Struct):
    answer: Any  # as predict gives it
    label: str | None  # None: the score of a regression, or of a similarity
    score: float
    words: list[WordAttribution]
    method: str = METHOD


def can_attribute(predictor: Predictor) -> bool:
    """Models whose answer has one score for a text or a pair."""
    return operations.task_name(predictor) in ("classify", "regress", "similar")


async def attribute(service: Service, request: Request) -> Attribution:
    body = await read_body(request, AttributeBody, service.limits)
    predictor = await service.find(request.path_params["name"])
    if not can_attribute(predictor):
        raise Unsupported("this model has no score to explain; name one with task=classify, regress or similar")
    (example,), (size,) = await fit_examples(predictor, [body.inputs], body.truncate)
    words = _find_words(example)
    if len(words) > MAX_WORDS:
        raise TooLarge(f"{len(words):,} words are more than the {MAX_WORDS:,} whose attribution is computed; shorten the text")
    examples = [example, *(_leave_out(example, *word) for word in words)]
    answers = await service.run(request, operations.predict(predictor), examples, [size] * len(examples))
    label = body.label or _best_label(answers[0])
    if body.label is not None and body.label not in answers[0].get("scores", {}):
        raise InvalidRequest(f"label={body.label} is not one of the model; its labels: {', '.join(predictor.labels)}")
    scores = [float(answer["score"] if label is None else answer["scores"][label]) for answer in answers]
    rows = [
        WordAttribution(field, getattr(example, field)[start:end], start, end, scores[0] - score)
        for (field, start, end), score in zip(words, scores[1:], strict=True)
    ]
    return Attribution(answers[0], label, scores[0], rows)


def _find_words(example: Any) -> list[tuple[str, int, int]]:
    """(field, start, end) of each word; a Chinese character is one, and so is a punctuation mark."""
    texts = {field: text for field in FIELDS if (text := getattr(example, field, None))}
    return [(field, *span) for field, text in texts.items() for span in sentence_from_text(text)[1]]


def _leave_out(example: Any, field: str, start: int, end: int) -> Any:
    text = getattr(example, field)
    if text[start - 1 : start] == " " and text[end : end + 1] in ("", " "):
        start -= 1  # of the spaces around the word, one stays
    return replace(example, **{field: text[:start] + text[end:]})


def _best_label(answer: dict[str, Any]) -> str | None:
    scores: dict[str, float] = answer.get("scores", {})
    return max(scores, key=lambda label: scores[label]) if scores else None


ENDPOINTS = (
    Endpoint(
        "POST", "/models/{name}/attribute", attribute, "words by how much they raise the score", Attribution, AttributeBody
    ),
)
