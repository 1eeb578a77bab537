"""Our own API: /models and, for each model, predict, fill, embed, similarity, generate and tokenize: the answers of Python."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...inference.predictor import Predictor
from ...tasks.similarity import Pooling
from .. import operations
from ..endpoints import Endpoint
from ..errors import ClientGone, InvalidRequest, ServeError, Unsupported
from ..models import ServedModel
from ..requests import (
    SomeTexts,
    Texts,
    Truncate,
    as_list,
    check_count,
    encode,
    fit_examples,
    fit_masked_texts,
    fit_texts,
    read_body,
    rough_size,
)
from ..service import Service
from . import attribute

TopK = Annotated[int, Meta(ge=1, le=10_000)]
Input = str | dict[str, Any]


class PredictBody(msgspec.Struct):
    """A text, a dictionary of the fields of the model's task, or a list of them."""

    inputs: Input | Annotated[list[Input], Meta(min_length=1)]
    top_k: TopK | None = None
    truncate: Truncate = False


class FillBody(msgspec.Struct):
    inputs: Texts
    top_k: TopK = 5
    candidates: SomeTexts | None = None
    iterative: bool = False
    truncate: Truncate = False


class EmbedBody(msgspec.Struct):
    inputs: Texts
    pooling: Pooling | None = None
    normalize: bool = False
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    prompt_name: str | None = None
    truncate: Truncate = False


class SimilarityBody(msgspec.Struct):
    """Cosine similarities between all texts of `inputs`, or from each of them to each of `others`."""

    inputs: Texts
    others: SomeTexts | None = None
    truncate: Truncate = False


class GenerateBody(msgspec.Struct):
    """`search`: settings of the decoding, as in `Predictor.generate`."""

    inputs: Texts
    kind: Literal["greedy", "sample", "beam"] = "greedy"
    search: dict[str, Any] = {}
    stream: bool = False
    truncate: Truncate = False


class TokenizeBody(msgspec.Struct):
    inputs: Texts


class ModelInfo(msgspec.Struct):
    """A served model; what is known only once it is loaded is null before."""

    name: str
    loaded: bool
    task: str | None = None
    labels: list[str] = []
    max_length: int | None = None
    parameters: int | None = None
    mask_token: str | None = None  # what `fill` replaces
    fields: list[str] = []  # of an input of `predict`
    can: list[str] = []


class Tokens(msgspec.Struct):
    ids: list[int]
    tokens: list[str]
    offsets: list[list[int]]


async def list_models(service: Service, request: Request) -> list[ModelInfo]:
    return [describe_model(model) for model in service.store.models.values()]


async def show_model(service: Service, request: Request) -> ModelInfo:
    model = service.store.find(request.path_params["name"])
    await service.store.load(model)
    return describe_model(model)


def describe_model(model: ServedModel) -> ModelInfo:
    predictor = model.predictor
    if predictor is None:
        return ModelInfo(model.name, False)
    can = {"predict": predictor.task is not None, "attribute": attribute.can_attribute(predictor),
           "fill": operations.can_fill(predictor), "embed": operations.can_embed(predictor),
           "rerank": operations.can_rerank(predictor), "generate": operations.can_generate(predictor)}  # fmt: skip
    tokenizer = predictor.tokenizer
    return ModelInfo(
        model.name, True, operations.task_name(predictor), list(predictor.labels), predictor.max_length,
        predictor.num_parameters, tokenizer.id_to_token[tokenizer.mask_token_id] if can["fill"] else None,
        [] if predictor.task is None else list(predictor.task.request_fields().required),
        [name for name, is_able in can.items() if is_able],
    )  # fmt: skip


async def predict(service: Service, request: Request) -> Any:
    """Answers of the task: classify, regress, tag, answer, choose, similar or generate."""
    body = await read_body(request, PredictBody, service.limits)
    predictor = await service.find(request.path_params["name"])
    inputs, is_single = as_list(body.inputs)
    examples, sizes = await _read_examples(service, predictor, inputs, body.truncate)
    answers = await service.run(request, operations.predict(predictor, body.top_k), examples, sizes)
    return answers[0] if is_single else answers


async def fill(service: Service, request: Request) -> Any:
    body = await read_body(request, FillBody, service.limits)
    predictor = await service.find(request.path_params["name"])
    texts, is_single = as_list(body.inputs)
    check_count(len(texts), service.limits)
    if not operations.can_fill(predictor):
        raise Unsupported("this model fills no masks: it was fine-tuned, or has no masked language model")
    texts, sizes = await fit_masked_texts(predictor, texts, body.truncate)
    candidates = None if body.candidates is None else tuple(body.candidates)
    operation = operations.fill(predictor, body.top_k, candidates, body.iterative)
    answers = await service.run(request, operation, texts, sizes)
    return answers[0] if is_single else answers


async def embed(service: Service, request: Request) -> Any:
    body = await read_body(request, EmbedBody, service.limits)
    predictor = await service.find(request.path_params["name"])
    texts, is_single = as_list(body.inputs)
    vectors = await _embed(service, request, predictor, texts, body.truncate, body.pooling, body.prompt_name)
    rows = operations.truncate_dimensions(vectors, body.dimensions, body.normalize).tolist()
    return rows[0] if is_single else rows


async def similarity(service: Service, request: Request) -> list[list[float]]:
    body = await read_body(request, SimilarityBody, service.limits)
    predictor = await service.find(request.path_params["name"])
    texts, others = as_list(body.inputs)[0], body.others or []
    vectors = await _embed(service, request, predictor, [*texts, *others], body.truncate)
    rows = operations.truncate_dimensions(vectors, None, normalize=True)
    columns = rows[len(texts) :] if body.others is not None else rows
    scores: list[list[float]] = np.clip(rows[: len(texts)] @ columns.T, -1, 1).tolist()
    return scores


async def generate(service: Service, request: Request) -> Any:
    body = await read_body(request, GenerateBody, service.limits)
    predictor = await service.find(request.path_params["name"])
    texts, is_single = as_list(body.inputs)
    check_count(len(texts), service.limits)
    if not operations.can_generate(predictor):
        raise Unsupported("this model generates no text; serve a causal language model, or one with task=generate")
    if body.stream:
        if len(texts) > 1:
            raise InvalidRequest("stream=true is for a single text; send a request for each")
        return await _stream(service, request, predictor, texts[0], body)
    operation = operations.generate(predictor, body.kind, body.search)
    if predictor.task is None:
        items, sizes = texts, [rough_size([text]) for text in texts]
    else:
        items, sizes = await _read_examples(service, predictor, [{"source": text} for text in texts], body.truncate)
    answers = await service.run(request, operation, items, sizes)
    return answers[0] if is_single else answers


async def tokenize(service: Service, request: Request) -> Any:
    body = await read_body(request, TokenizeBody, service.limits)
    predictor = await service.find(request.path_params["name"])
    texts, is_single = as_list(body.inputs)
    check_count(len(texts), service.limits)
    encodings = await encode(predictor, texts, return_offsets=True)
    rows = [Tokens(encoding.ids, encoding.tokens, [list(pair) for pair in encoding.offsets]) for encoding in encodings]
    return rows[0] if is_single else rows


async def _embed(
    service: Service, request: Request, predictor: Predictor, texts: list[str], truncate: Truncate,
    pooling: Pooling | None = None, prompt_name: str | None = None,
) -> list[Any]:  # fmt: skip
    check_count(len(texts), service.limits)
    if not operations.can_embed(predictor):
        raise Unsupported("this model has no sentence vectors: it is an encoder-decoder")
    texts, sizes = await fit_texts(predictor, texts, truncate, [prompt_name])
    return await service.run(request, operations.embed(predictor, pooling, prompt_name), texts, sizes)


async def _stream(service: Service, request: Request, predictor: Predictor, text: str, body: GenerateBody) -> Response:
    """Server-sent events: the pieces of the text as they come, then `[DONE]`. Between two pieces, other requests take turns."""
    pieces: list[Iterator[str]] = []

    def take_piece() -> str | None:
        if not pieces:
            pieces.append(iter(predictor.stream(text, body.kind, **body.search)))
        return next(pieces[0], None)

    async def send(piece: str | None) -> AsyncIterator[str]:
        try:
            while piece is not None:
                yield f"data: {json.dumps({'piece': piece}, ensure_ascii=False)}\n\n"
                (piece,) = await service.run(request, operations.next_piece(), [take_piece], [1], is_continued=True)
        except ClientGone:
            return
        except ServeError as error:  # the answer has begun, so that no status can say it
            yield f"data: {json.dumps({'error': error.message}, ensure_ascii=False)}\n\n"
        yield "data: [DONE]\n\n"

    (first,) = await service.run(request, operations.next_piece(), [take_piece], [1])  # errors of the request are raised here
    return StreamingResponse(send(first), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _read_examples(
    service: Service, predictor: Predictor, inputs: list[Any], truncate: Truncate
) -> tuple[list[Any], list[int]]:
    check_count(len(inputs), service.limits)
    if predictor.task is None:
        raise Unsupported("this model has no task; use fill, embed or generate, or serve a fine-tuned one")
    return await fit_examples(predictor, inputs, truncate)


Vectors = list[float | list[float]]  # of one text, or of each
ENDPOINTS = (
    Endpoint("GET", "/models", list_models, "the served models", list[ModelInfo]),
    Endpoint("GET", "/models/{name}", show_model, "one model, loaded if it was not", ModelInfo),
    Endpoint("POST", "/models/{name}/predict", predict, "answers of the model's task", Any, PredictBody),
    Endpoint("POST", "/models/{name}/fill", fill, "the most probable tokens for [MASK]", list[Any], FillBody),
    Endpoint("POST", "/models/{name}/embed", embed, "sentence vectors", Vectors, EmbedBody),
    Endpoint("POST", "/models/{name}/similarity", similarity, "cosine similarities", list[list[float]], SimilarityBody),
    Endpoint("POST", "/models/{name}/generate", generate, "generated text, whole or as events", Any, GenerateBody),
    Endpoint("POST", "/models/{name}/tokenize", tokenize, "tokens, ids and offsets", Tokens | list[Any], TokenizeBody),
)
