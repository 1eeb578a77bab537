"""Reranking: Cohere's and Jina's /v1/rerank and /v2/rerank, and the scores that text-embeddings-inference's route shares."""

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import Request

from .. import operations
from ..endpoints import Endpoint
from ..requests import Truncate, check_count, fit_examples, fit_texts, read_body
from ..service import Service

CROSS_ENCODER, BY_VECTORS = "cross-encoder", "embeddings"


class Document(msgspec.Struct):
    text: str


class RerankBody(msgspec.Struct):
    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    model: str | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    truncate: Truncate = "right"


class RankedDocument(msgspec.Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class RerankAnswer(msgspec.Struct):
    """`method`: cross-encoder (the model read each pair) or embeddings (cosine similarity of vectors)."""

    results: list[RankedDocument]
    model: str
    method: str


def error_body(error: Any) -> dict[str, Any]:
    return {"message": error.message, "detail": error.message}


async def rerank(service: Service, request: Request) -> RerankAnswer:
    body = await read_body(request, RerankBody, service.limits)
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    name, scores, method = await score(service, request, body.model, body.query, texts, body.truncate)
    ranked = sorted(range(len(texts)), key=lambda index: (-scores[index], index))[: body.top_n]
    results = [
        RankedDocument(index, scores[index], {"text": texts[index]} if body.return_documents else None) for index in ranked
    ]
    return RerankAnswer(results, name, method)


async def score(
    service: Service, request: Request, model_name: str | None, query: str, texts: list[str], truncate: Truncate
) -> tuple[str, list[float], str]:
    """The model, the score of each text for the query, and the method: a cross-encoder if there is one, else by vectors."""
    check_count(len(texts), service.limits)
    tests = (operations.can_rerank, operations.suits_embedding, operations.can_embed)
    model, predictor = await service.choose(model_name, *tests, what="rerank")
    if operations.can_rerank(predictor):
        pairs = [{"text": query, "text_b": text} for text in texts]
        examples, sizes = await fit_examples(predictor, pairs, truncate)
        answers = await service.run(request, operations.predict(predictor), examples, sizes)
        return model.name, [operations.positive_score(predictor, answer) for answer in answers], CROSS_ENCODER
    prompts = predictor.search_prompts
    fitting, sizes = await fit_texts(predictor, [query, *texts], truncate, prompts)
    (vector,) = await service.run(request, operations.embed(predictor, None, prompts[0]), fitting[:1], sizes[:1])
    vectors = await service.run(
        request, operations.embed(predictor, None, prompts[1]), fitting[1:], sizes[1:], is_continued=True
    )
    rows = operations.truncate_dimensions([vector, *vectors], None, normalize=True)
    scores: list[float] = np.clip(rows[1:] @ rows[0], -1, 1).tolist()
    return model.name, scores, BY_VECTORS


ENDPOINTS = tuple(
    Endpoint("POST", path, rerank, "documents by relevance, as Cohere's and Jina's", RerankAnswer, RerankBody, error_body)
    for path in ("/v1/rerank", "/v2/rerank")
)
