"""OpenAI's API for embeddings: /v1/embeddings and /v1/models."""

import base64
import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from .. import operations
from ..endpoints import Endpoint
from ..errors import InvalidRequest, ServeError, TooLarge, UnknownModel
from ..requests import Truncate, check_count, fit_texts, read_body
from ..service import Service

STARTED = int(time.time())


class EmbeddingsBody(msgspec.Struct):
    """`input`: a text, a list of texts, token ids of the model's own vocabulary, or a list of lists of them; `truncate` is
    ours."""

    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    truncate: Truncate = False


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class Usage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(msgspec.Struct):
    data: list[Embedding]
    model: str
    usage: Usage
    object: str = "list"


class ModelEntry(msgspec.Struct):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "bertsmith"


class ModelList(msgspec.Struct):
    data: list[ModelEntry]
    object: str = "list"


def error_body(error: ServeError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    code = "model_not_found" if isinstance(error, UnknownModel) else None
    return {"error": {"message": error.message, "type": kind, "param": None, "code": code}}


async def embeddings(service: Service, request: Request) -> EmbeddingsAnswer:
    body = await read_body(request, EmbeddingsBody, service.limits)
    tests = (operations.suits_embedding, operations.can_embed)
    model, predictor = await service.choose(body.model, *tests, what="embed texts")
    inputs: list[Any] = body.input if isinstance(body.input, list) else [body.input]
    if inputs and all(isinstance(item, int) for item in inputs):
        inputs = [inputs]  # the ids of one text
    check_count(len(inputs), service.limits)
    if all(isinstance(item, str) for item in inputs):
        texts, sizes = await fit_texts(predictor, inputs, body.truncate)
        vectors = await service.run(request, operations.embed(predictor), texts, sizes)
    elif all(isinstance(item, list) for item in inputs):
        _check_ids(inputs, len(predictor.tokenizer), predictor.max_length - 2)
        sizes = [len(ids) + 2 for ids in inputs]
        vectors = await service.run(request, operations.embed_ids(predictor), inputs, sizes)
    else:
        raise InvalidRequest("input mixes texts and token ids; give a list of one kind")
    rows = operations.truncate_dimensions(vectors, body.dimensions, normalize=True)
    if body.encoding_format == "base64":
        data = [Embedding(index, base64.b64encode(row.astype("<f4").tobytes()).decode()) for index, row in enumerate(rows)]
    else:
        data = [Embedding(index, row) for index, row in enumerate(rows.tolist())]
    return EmbeddingsAnswer(data, model.name, Usage(sum(sizes), sum(sizes)))


async def list_models(service: Service, request: Request) -> ModelList:
    return ModelList([ModelEntry(name, STARTED) for name in service.store.models])


async def show_model(service: Service, request: Request) -> ModelEntry:
    return ModelEntry(service.store.find(request.path_params["name"]).name, STARTED)


def _check_ids(sequences: list[list[int]], vocab_size: int, limit: int) -> None:
    for number, ids in enumerate(sequences, 1):
        if wrong := next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None):
            raise InvalidRequest(
                f"token id {wrong} of input {number} is not in the vocabulary of {vocab_size:,} tokens; ids of other "
                "tokenizers mean nothing here: send texts (LangChain: check_embedding_ctx_length=False)"
            )
        if len(ids) > limit:
            raise TooLarge(f"input {number} has {len(ids) + 2:,} tokens, more than the {limit + 2:,} of the model")


ENDPOINTS = (
    Endpoint("POST", "/v1/embeddings", embeddings, "embeddings, as OpenAI's", EmbeddingsAnswer, EmbeddingsBody, error_body),
    Endpoint("GET", "/v1/models", list_models, "the models, as OpenAI's", ModelList, error_body=error_body),
    Endpoint("GET", "/v1/models/{name}", show_model, "one model, as OpenAI's", ModelEntry, error_body=error_body),
)
