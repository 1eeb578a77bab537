"""Bodies of requests: JSON of a bounded size, converted to a struct; and lists of texts, truncated only on request."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ..errors import UserError
from ..inference.predictor import Predictor
from ..reading import parse_json
from .errors import ClientGone, InvalidRequest, SlowClient, TooLarge

T = TypeVar("T")
Truncate = Literal[False, "right", "left"]


class Limits(msgspec.Struct, frozen=True):
    """What one request may take."""

    max_request_bytes: int
    max_texts: int
    timeout: float  # seconds, for reading the body and for the answer


async def read_body(request: Request, body_type: type[T], limits: Limits) -> T:
    """The body as `body_type`; unknown fields are ignored, as other servers do."""
    data = await read_bytes(request, limits)
    try:
        return msgspec.convert(parse_json(data, "the body"), body_type)
    except UserError as error:
        raise InvalidRequest(f"{str(error).replace(' is damaged', ' is not valid JSON')}") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body does not fit: {error}") from None


async def read_bytes(request: Request, limits: Limits) -> bytes:
    if (length := request.headers.get("content-length", "")).isdigit() and int(length) > limits.max_request_bytes:
        raise _too_large(limits)
    chunks, size = list[bytes](), 0
    try:
        async with asyncio.timeout(limits.timeout):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_request_bytes:
                    raise _too_large(limits)
                chunks.append(chunk)
    except TimeoutError:
        raise SlowClient(f"the body did not arrive within {limits.timeout:g} seconds") from None
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


def check_count(count: int, limits: Limits) -> None:
    """Raises for an empty list of texts, and for more texts than a request may have."""
    if not count:
        raise InvalidRequest("there is no text; give at least one")
    if count > limits.max_texts:
        raise TooLarge(f"{count:,} texts are more than the {limits.max_texts:,} of a request; send several requests")


def fit_texts(predictor: Predictor, texts: Sequence[str], truncate: Truncate) -> tuple[list[str], list[int]]:
    """The texts, each within the length of the model, and their numbers of tokens, [CLS] and [SEP] included.

    `truncate` keeps the first tokens ("right": the right end is cut off) or the last ones ("left"); without it, a longer text
    is an error.
    """
    limit = predictor.max_length - 2
    fitting, lengths = list[str](), list[int]()
    encodings = predictor.tokenizer.encode_batch(texts, return_offsets=False)
    for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True), 1):
        length = len(encoding.ids)
        if length > limit:
            if not truncate:
                raise TooLarge(
                    f"text {number:,} has {length + 2:,} tokens, more than the {predictor.max_length:,} of the model; "
                    'shorten it, or set truncate to "right" or "left"'
                )
            offsets = predictor.tokenizer.encode(text).offsets
            text = text[: offsets[limit - 1][1]] if truncate == "right" else text[offsets[length - limit][0] :]
            length = limit
        fitting.append(text)
        lengths.append(length + 2)
    return fitting, lengths


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"the body is larger than the {limits.max_request_bytes:,} bytes of a request; send several requests")


def as_list(value: Any) -> tuple[list[Any], bool]:
    """A value as a list, and whether it was a single one."""
    return (value, False) if isinstance(value, list) else ([value], True)
