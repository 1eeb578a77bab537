"""Bits per byte: what a language model needs to write held-out text down, comparable between vocabularies.

A tokenizer of whole words knows only some of them, and a model that foretells [UNK] has not written the word. So each
unknown word is charged as it would have to be sent: eight bits a byte, and a byte for its end.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from ..text.documents import documents
from ..text.files import found
from ..text.tokenizer import Tokenizer

A_BYTE = 8


def bits_per_byte(nats: float, tokens: int, size: int, unknown: int = 0) -> float:
    """Of text of `size` bytes in `tokens` tokens at `nats` each; `unknown` bytes are spelled out."""
    return (nats / math.log(2) * tokens + A_BYTE * unknown) / size


def unknown_bytes(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Bytes it takes to spell the words that the tokenizer does not know, each with an end."""
    return sum(_unknown(tokenizer, line) for lines in documents(_paths(texts)) for line in lines)


def _unknown(tokenizer: Tokenizer, line: str) -> int:
    encoding = tokenizer.encode(line)
    spans = [span for number, span in zip(encoding.ids, encoding.offsets, strict=True) if number == tokenizer.unk]
    return sum(len(line[start:end].encode("utf-8", "replace")) + 1 for start, end in spans)


def _paths(texts: Sequence[str]) -> list[Path]:
    return found(texts)
