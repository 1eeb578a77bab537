"""Bodies of requests: JSON of a bounded size, converted to a struct; and texts within the length of the model."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from tokenizers import Encoding

from ..errors import UserError
from ..inference.predictor import Predictor
from ..reading import parse_json
from ..tasks.base import Task
from ..tasks.requests import parse_requests
from ..tasks.sequences import truncate_longest_first
from .errors import ClientGone, InvalidRequest, SlowClient, TooLarge

DISCARDED_BYTES, DISCARD_SECONDS = 64 << 20, 2.0  # of a body that is too large
LONG_CHARACTERS = 20_000  # from here on texts are tokenized in another thread, so that other requests are not held up

T = TypeVar("T")
Truncate = Literal[False, "right", "left"]
SomeTexts = Annotated[list[str], Meta(min_length=1)]
Texts = str | SomeTexts


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
    """The body. One that is too large is read on for a while, but not kept: a client that is still sending does not read the
    answer."""
    length = request.headers.get("content-length", "")
    is_waiting = request.headers.get("expect", "").lower() == "100-continue"  # for an answer, before it sends the body
    if length.isdigit() and int(length) > limits.max_request_bytes and is_waiting:
        raise _too_large(limits)
    chunks, size = list[bytes](), 0
    try:
        async with asyncio.timeout(limits.timeout) as deadline:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.max_request_bytes + DISCARDED_BYTES:
                    break
                if size <= limits.max_request_bytes:
                    chunks.append(chunk)
                elif chunks:
                    chunks.clear()
                    deadline.reschedule(asyncio.get_running_loop().time() + DISCARD_SECONDS)
        if size > limits.max_request_bytes:
            raise _too_large(limits)
    except TimeoutError:
        if size > limits.max_request_bytes:
            raise _too_large(limits) from None
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


async def fit_texts(
    predictor: Predictor, texts: Sequence[str], truncate: Truncate, prompt_names: Sequence[str | None] = (None,)
) -> tuple[list[str], list[int]]:
    """The texts, each within the length of the model, and their numbers of tokens, [CLS] and [SEP] included.

    `truncate` keeps the first tokens ("right": the right end is cut off) or the last ones ("left"); without it, a longer text
    is an error. `prompt_names`: of the prompts that are put before the texts; the last one holds for all that follow. A model
    that embeds long texts in windows takes texts of any length.
    """
    task, tokenizer = predictor.task or Task(), predictor.tokenizer
    prompts = [len(tokenizer.encode(prompt).ids) if (prompt := task.find_prompt(name)) else 0 for name in prompt_names]
    reads_windows = task.embedding_options.get("long_text", "truncate") != "truncate"
    fitting, sizes = list[str](), list[int]()
    for index, (text, encoding) in enumerate(zip(texts, await encode(predictor, texts), strict=True)):
        num_prompt_tokens = prompts[min(index, len(prompts) - 1)]
        length, limit = len(encoding.ids), max(1, predictor.max_length - 2 - num_prompt_tokens)
        if length > limit and not reads_windows:
            if not truncate:
                raise _too_long(index, length + num_prompt_tokens + 2, predictor)
            text, length = await _cut(predictor, text, limit, truncate), limit
        fitting.append(text)
        sizes.append(length + num_prompt_tokens + 2)
    return fitting, sizes


async def fit_masked_texts(predictor: Predictor, texts: Sequence[str], truncate: Truncate) -> tuple[list[str], list[int]]:
    """As `fit_texts`, for texts in which [MASK] is the mask token, one token."""
    tokenizer, limit = predictor.tokenizer, predictor.max_length - 2
    mask = tokenizer.id_to_token[tokenizer.mask_token_id]
    fitting, sizes = list[str](), list[int]()
    for index, text in enumerate(texts):
        parts = text.split(mask)
        lengths = [len(encoding.ids) for encoding in await encode(predictor, parts)]
        size = sum(lengths) + len(parts) - 1
        if size > limit:
            if not truncate:
                raise _too_long(index, size + 2, predictor)
            step = 1 if truncate == "right" else -1
            kept, room = list[str](), limit
            for number, (part, length) in enumerate(list(zip(parts, lengths, strict=True))[::step]):
                if number and room:
                    kept, room = [*kept, mask], room - 1
                kept.append(part if length <= room else await _cut(predictor, part, room, truncate) if room else "")
                room = max(0, room - length)
            text, size = "".join(kept[::step]), limit
        fitting.append(text)
        sizes.append(size + 2)
    return fitting, sizes


async def fit_examples(predictor: Predictor, inputs: list[Any], truncate: Truncate) -> tuple[list[Any], list[int]]:
    """Examples of the model's task from texts or dictionaries of its fields, and their numbers of tokens, at least roughly.

    Longer ones are an error or truncated, as by `fit_texts`; a task that reads long texts in windows takes any length.
    """
    task, tokenizer = predictor.require_task(), predictor.tokenizer
    examples = parse_requests(task, inputs, None, {})[0]
    if getattr(task, "long_text", None) not in (None, "truncate"):
        return examples, [rough_size(task.input_texts(example).values()) for example in examples]
    encodings = iter(await encode(predictor, [text for example in examples for text in example.texts]))
    prompt = task.find_prompt()
    num_prompt_tokens = len(tokenizer.encode(prompt).ids) if prompt else 0
    fitting, sizes = list[Any](), list[int]()
    for index, example in enumerate(examples):
        lengths = [len(next(encodings).ids) for _ in example.texts]
        size = task.sequence_length(lengths) + len(example.special_tokens) + num_prompt_tokens
        if size > predictor.max_length:
            if not truncate:
                raise _too_long(index, size, predictor)
            if truncate == "left":
                example = await _cut_left(predictor, example, lengths, size - sum(lengths))
            size = predictor.max_length
        fitting.append(example)
        sizes.append(size)
    return fitting, sizes


async def encode(predictor: Predictor, texts: Sequence[str], return_offsets: bool = False) -> list[Encoding]:
    """`Tokenizer.encode_batch`; long texts do not hold up other requests."""
    encode_batch = predictor.tokenizer.encode_batch
    if sum(map(len, texts)) < LONG_CHARACTERS:
        return encode_batch(texts, return_offsets)
    return await asyncio.to_thread(encode_batch, texts, return_offsets)


def rough_size(texts: Iterable[str]) -> int:
    """Tokens of the texts of an example: about four characters are a token."""
    return sum(map(len, texts)) // 4 + 2


def as_list(value: Any) -> tuple[list[Any], bool]:
    """A value as a list, and whether it was a single one."""
    return (value, False) if isinstance(value, list) else ([value], True)


async def _cut(predictor: Predictor, text: str, limit: int, side: Truncate) -> str:
    """The text without what its first or last `limit` tokens leave over."""
    offsets = (await encode(predictor, [text], return_offsets=True))[0].offsets
    if len(offsets) <= limit:
        return text
    return text[: offsets[limit - 1][1]] if side == "right" else text[offsets[len(offsets) - limit][0] :]


async def _cut_left(predictor: Predictor, example: Any, lengths: list[int], num_special: int) -> Any:
    """A text or a pair without its first tokens, of the longer text more, as models cut the right end."""
    if len(lengths) > 2 or not hasattr(example, "text") or (len(lengths) == 2 and not hasattr(example, "text_b")):
        raise InvalidRequest('truncate="left" is for texts and pairs of texts; set "right"')
    room = predictor.max_length - num_special
    if len(lengths) == 1:
        return replace(example, text=await _cut(predictor, example.text, room, "left"))
    first, second = truncate_longest_first(lengths[0], lengths[1], room)
    return replace(
        example,
        text=await _cut(predictor, example.text, first, "left"),
        text_b=await _cut(predictor, example.text_b, second, "left"),
    )


def _too_long(index: int, size: int, predictor: Predictor) -> TooLarge:
    return TooLarge(f"text {index + 1:,} has {size:,} tokens, more than the {predictor.max_length:,} of the model; "
                    'shorten it, or set truncate to "right" or "left"')  # fmt: skip


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"the body is larger than the {limits.max_request_bytes:,} bytes of a request; send several requests")
