"""text-embeddings-inference's routes, without a model in the path: /embed, /embed_all, /predict, /rerank, /similarity,
/tokenize, /decode, /info, and POST / by the task of the model. `?model=NAME` names one, else the first that can answers."""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import Request

from ... import __version__
from ...inference.predictor import Predictor
from .. import operations
from ..endpoints import Endpoint
from ..errors import InvalidRequest
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
from .rerank import score

Pair = tuple[str, str]


class TruncatedBody(msgspec.Struct):
    truncate: bool | None = False
    truncation_direction: Literal["Right", "Left", "right", "left"] = "Right"

    @property
    def side(self) -> Truncate:
        if not self.truncate:
            return False
        return "left" if self.truncation_direction.lower() == "left" else "right"


class EmbedBody(TruncatedBody, kw_only=True):
    inputs: Texts
    prompt_name: str | None = None
    normalize: bool = True
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class EmbedAllBody(TruncatedBody, kw_only=True):
    inputs: Texts


class PredictBody(TruncatedBody, kw_only=True):
    """A text; a pair as a list of two texts; or a batch: a list of lists of one or two texts."""

    inputs: str | Annotated[list[str | Annotated[list[str], Meta(min_length=1, max_length=2)]], Meta(min_length=1)]
    raw_scores: bool = False


class RerankBody(TruncatedBody, kw_only=True):
    query: str
    texts: SomeTexts
    return_text: bool = False
    raw_scores: bool = False


class SimilarityInputs(msgspec.Struct):
    source_sentence: str
    sentences: SomeTexts


class Parameters(TruncatedBody):
    top_k: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    normalize: bool | None = True


class SimilarityBody(msgspec.Struct):
    inputs: SimilarityInputs
    parameters: Parameters = msgspec.field(default_factory=Parameters)


class TokenizeBody(msgspec.Struct):
    inputs: Texts
    add_special_tokens: bool = True


class DecodeBody(msgspec.Struct):
    ids: Annotated[list[int | list[int]], Meta(min_length=1)]
    skip_special_tokens: bool = True


class RootBody(msgspec.Struct):
    """`inputs` as the task of the model takes them."""

    inputs: Any
    parameters: Parameters = msgspec.field(default_factory=Parameters)


class ScoredLabel(msgspec.Struct):
    label: str
    score: float


class RankedText(msgspec.Struct, omit_defaults=True):
    index: int
    score: float
    text: str | None = None


class Token(msgspec.Struct):
    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None


class Info(msgspec.Struct):
    model_id: str
    model_dtype: str
    model_type: dict[str, Any]
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    version: str


async def embed(service: Service, request: Request) -> list[list[float]]:
    body = await read_body(request, EmbedBody, service.limits)
    _, predictor = await _choose_embedder(service, request)
    texts, side = as_list(body.inputs)[0], body.side
    return await _embed(service, request, predictor, texts, side, body.normalize, body.dimensions, body.prompt_name)


async def embed_all(service: Service, request: Request) -> list[list[list[float]]]:
    """The vectors of all tokens of each text, [CLS] and [SEP] included."""
    body = await read_body(request, EmbedAllBody, service.limits)
    _, predictor = await _choose_embedder(service, request)
    texts = as_list(body.inputs)[0]
    check_count(len(texts), service.limits)
    texts, sizes = await fit_texts(predictor, texts, body.side)
    rows = await service.run(request, operations.hidden_states(predictor), texts, sizes)
    return [row.vectors.tolist() for row in rows]


async def predict(service: Service, request: Request) -> Any:
    """Labels by decreasing score: a list for one text, a list of lists for a batch."""
    body = await read_body(request, PredictBody, service.limits)
    _, predictor = await service.choose(request.query_params.get("model"), operations.can_classify, what="classify texts")
    inputs, is_batch = _read_sequences(body.inputs)
    answers = await _classify(service, request, predictor, inputs, body.side)
    return answers if is_batch else answers[0]


async def rerank(service: Service, request: Request) -> list[RankedText]:
    body = await read_body(request, RerankBody, service.limits)
    _, scores, _ = await score(service, request, request.query_params.get("model"), body.query, body.texts, body.side)
    ranked = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    return [RankedText(index, scores[index], body.texts[index] if body.return_text else None) for index in ranked]


async def similarity(service: Service, request: Request) -> list[float]:
    body = await read_body(request, SimilarityBody, service.limits)
    _, predictor = await _choose_embedder(service, request)
    return await _similarity(service, request, predictor, body.inputs, body.parameters.side)


async def tokenize(service: Service, request: Request) -> list[list[Token]]:
    body = await read_body(request, TokenizeBody, service.limits)
    _, predictor = await service.choose(request.query_params.get("model"), lambda _: True, what="tokenize")
    texts, tokenizer = as_list(body.inputs)[0], predictor.tokenizer
    check_count(len(texts), service.limits)
    frame = [Token(i, tokenizer.id_to_token[i], True) for i in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
    rows = []
    for encoding in await encode(predictor, texts, return_offsets=True):
        triples = zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True)
        tokens = [Token(token_id, text, False, *offsets) for token_id, text, offsets in triples]
        rows.append([frame[0], *tokens, frame[1]] if body.add_special_tokens else tokens)
    return rows


async def decode(service: Service, request: Request) -> list[str]:
    body = await read_body(request, DecodeBody, service.limits)
    _, predictor = await service.choose(request.query_params.get("model"), lambda _: True, what="decode")
    lists = [item for item in body.ids if isinstance(item, list)]
    ids = [item for item in body.ids if not isinstance(item, list)]  # of one text
    if lists and ids:
        raise InvalidRequest("ids mixes ids and lists of them; give a list of one kind")
    sequences, tokenizer, skip = lists or [ids], predictor.tokenizer, body.skip_special_tokens
    check_count(len(sequences), service.limits)
    if not all(0 <= token_id < len(tokenizer) for sequence in sequences for token_id in sequence):
        raise InvalidRequest(f"an id is not in the vocabulary of {len(tokenizer):,} tokens")
    return [tokenizer.decode([i for i in sequence if not (skip and tokenizer.is_special[i])]) for sequence in sequences]


async def info(service: Service, request: Request) -> Info:
    model, predictor = await service.choose(request.query_params.get("model"), lambda _: True, what="be described")
    kind: dict[str, Any] = {"embedding": {"pooling": predictor.pooling}}
    if operations.can_classify(predictor):
        labels = dict(enumerate(predictor.labels or ["LABEL_0"]))
        kind = {"classifier": {"id2label": {str(i): label for i, label in labels.items()},
                               "label2id": {label: i for i, label in labels.items()}}}  # fmt: skip
    return Info(model.name, predictor.engine.compute_precision, kind, predictor.max_length, service.scheduler.batch_tokens,
                service.limits.max_texts, __version__)  # fmt: skip


async def root(service: Service, request: Request) -> Any:
    """The answer of the model's task in the shape of transformers' pipeline, which huggingface_hub's InferenceClient reads."""
    body = await read_body(request, RootBody, service.limits)
    _, predictor = await service.choose(request.query_params.get("model"), lambda _: True, what="answer")
    inputs, parameters = body.inputs, body.parameters
    task, side = operations.task_name(predictor), parameters.side
    is_similarity = isinstance(inputs, dict) and "source_sentence" in inputs
    if task in ("classify", "regress"):
        sequences, is_batch = _read_sequences(_as_sequences(inputs))
        answers = await _classify(service, request, predictor, sequences, side, parameters.top_k)
        return answers if is_batch else [answers[0]]
    if task == "tag":
        texts, is_single = _read_texts(inputs)
        answers = await _predict(service, request, predictor, texts, side)
        return answers[0] if is_single else answers
    if task in ("answer", "choose", "generate"):
        values, is_single = as_list({"source": inputs} if task == "generate" and isinstance(inputs, str) else inputs)
        answers = await _predict(service, request, predictor, values, side)
        return answers[0] if is_single and task != "generate" else answers
    if task is None and not is_similarity and operations.can_fill(predictor) and _has_mask(predictor, inputs):
        texts, is_single = _read_texts(inputs)
        texts, sizes = await fit_masked_texts(predictor, texts, side)
        operation = operations.fill(predictor, parameters.top_k or 5, None, False)
        answers = await service.run(request, operation, texts, sizes)
        return answers[0] if is_single else answers
    if task is None and operations.can_generate(predictor):
        texts, _ = _read_texts(inputs)
        sizes = [rough_size([text]) for text in texts]
        return await service.run(request, operations.generate(predictor, "greedy", {}), texts, sizes)
    if is_similarity:
        return await _similarity(service, request, predictor, _read_similarity(inputs), side)
    texts, _ = _read_texts(inputs)
    return await _embed(service, request, predictor, texts, side, parameters.normalize is not False, None)


async def _choose_embedder(service: Service, request: Request) -> tuple[ServedModel, Predictor]:
    tests = (operations.suits_embedding, operations.can_embed)
    return await service.choose(request.query_params.get("model"), *tests, what="embed texts")


async def _embed(
    service: Service, request: Request, predictor: Predictor, texts: list[str], side: Truncate, normalize: bool,
    dimensions: int | None, prompt_name: str | None = None,
) -> list[list[float]]:  # fmt: skip
    check_count(len(texts), service.limits)
    texts, sizes = await fit_texts(predictor, texts, side, [prompt_name])
    vectors = await service.run(request, operations.embed(predictor, None, prompt_name), texts, sizes)
    rows: list[list[float]] = operations.truncate_dimensions(vectors, dimensions, normalize).tolist()
    return rows


async def _similarity(
    service: Service, request: Request, predictor: Predictor, inputs: SimilarityInputs, side: Truncate
) -> list[float]:
    check_count(len(inputs.sentences), service.limits)
    texts, sizes = await fit_texts(predictor, [inputs.source_sentence, *inputs.sentences], side)
    vectors = await service.run(request, operations.embed(predictor), texts, sizes)
    rows = operations.truncate_dimensions(vectors, None, normalize=True)
    scores: list[float] = np.clip(rows[1:] @ rows[0], -1, 1).tolist()
    return scores


async def _predict(service: Service, request: Request, predictor: Predictor, values: list[Any], side: Truncate) -> list[Any]:
    """Answers of the model's task."""
    check_count(len(values), service.limits)
    examples, sizes = await fit_examples(predictor, values, side)
    return await service.run(request, operations.predict(predictor), examples, sizes)


async def _classify(
    service: Service,
    request: Request,
    predictor: Predictor,
    sequences: list[list[str]],
    side: Truncate,
    top_k: int | None = None,
) -> list[list[ScoredLabel]]:
    fields = [dict(zip(("text", "text_b"), sequence, strict=False)) for sequence in sequences]
    answers = await _predict(service, request, predictor, fields, side)
    return [_scored_labels(answer)[:top_k] for answer in answers]


def _scored_labels(answer: dict[str, Any]) -> list[ScoredLabel]:
    """Labels by decreasing score; a regression has the one label LABEL_0, as in transformers."""
    scores = answer.get("scores") or {"LABEL_0": answer["score"]}
    return sorted((ScoredLabel(label, score) for label, score in scores.items()), key=lambda row: -row.score)


def _read_similarity(inputs: dict[str, Any]) -> SimilarityInputs:
    try:
        return msgspec.convert(inputs, SimilarityInputs)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"inputs do not fit: {error}") from None


def _read_sequences(inputs: str | list[Any]) -> tuple[list[list[str]], bool]:
    """Lists of one or two texts, and whether they were a batch."""
    if isinstance(inputs, str):
        return [[inputs]], False
    if inputs and all(isinstance(item, str) for item in inputs):
        return [inputs], False  # a pair
    sequences = [[item] if isinstance(item, str) else item for item in inputs]
    if not all(isinstance(item, list) and 1 <= len(item) <= 2 and all(isinstance(t, str) for t in item) for item in sequences):
        raise InvalidRequest("inputs is a text, a pair of texts, or a list of lists of one or two texts")
    return sequences, True


def _as_sequences(inputs: Any) -> Any:
    """transformers' inputs of text classification: a list of texts is a batch, a dictionary a pair."""
    rows = [_as_pair(item) for item in inputs] if isinstance(inputs, list) else [_as_pair(inputs)]
    return rows


def _as_pair(item: Any) -> Any:
    if isinstance(item, dict) and "text" in item:
        return [item["text"], *([item["text_pair"]] if item.get("text_pair") is not None else [])]
    return [item] if isinstance(item, str) else item


def _read_texts(inputs: Any) -> tuple[list[str], bool]:
    texts, is_single = as_list(inputs)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("inputs is a text, or a list of texts")
    return texts, is_single


def _has_mask(predictor: Predictor, inputs: Any) -> bool:
    mask = predictor.tokenizer.id_to_token[predictor.tokenizer.mask_token_id]
    return any(isinstance(text, str) and mask in text for text in as_list(inputs)[0])


ENDPOINTS = (
    Endpoint("POST", "/", root, "the answer of the model's task, as transformers' pipelines", Any, RootBody),
    Endpoint("POST", "/embed", embed, "sentence vectors", list[list[float]], EmbedBody),
    Endpoint("POST", "/embed_all", embed_all, "vectors of all tokens", list[list[list[float]]], EmbedAllBody),
    Endpoint("POST", "/predict", predict, "labels and scores", list[Any], PredictBody),
    Endpoint("POST", "/rerank", rerank, "texts by relevance to a query", list[RankedText], RerankBody),
    Endpoint("POST", "/similarity", similarity, "similarity of sentences to one", list[float], SimilarityBody),
    Endpoint("POST", "/tokenize", tokenize, "tokens of texts", list[list[Token]], TokenizeBody),
    Endpoint("POST", "/decode", decode, "texts of token ids", list[str], DecodeBody),
    Endpoint("GET", "/info", info, "the model and the limits", Info),
)
