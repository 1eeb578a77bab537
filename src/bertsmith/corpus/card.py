"""The data card: what a corpus holds, counted from its own files."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tokenization.tokenizer import Tokenizer
from .store import DOCUMENTS, SENTENCES, TOKENS, WORDS

STEP = 1 << 22  # tokens counted at a time
BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def made(folder: Path, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> dict[str, Any]:
    sentences = np.memmap(folder / SENTENCES, np.int64, "r")
    documents = np.fromfile(folder / DOCUMENTS, np.int64)
    counts = unigrams(np.memmap(folder / TOKENS, dtype, "r"), len(tokenizer))
    tokens, sizes = int(counts.sum()), np.diff(sentences)
    card = {"documents": len(documents) - 1, "sentences": len(sizes), "tokens": tokens, "dtype": dtype.name}
    card |= {"vocabulary": len(tokenizer), "tokenizer": tokenizer.fingerprint, "words marked": (folder / WORDS).exists()}
    card |= {"unknown rate": round(float(counts[tokenizer.unk]) / tokens, 6), "unigram entropy": entropy(counts)}
    card |= {"longest sentence": int(sizes.max()), "sentence lengths": histogram(sizes)}
    return card | {"document lengths in sentences": histogram(np.diff(documents)), "warnings": warnings(card)}


def unigrams(tokens: NDArray[Any], size: int) -> NDArray[np.int64]:
    counts = np.zeros(size, np.int64)
    for start in range(0, len(tokens), STEP):
        counts += np.bincount(tokens[start : start + STEP], minlength=size)
    return counts


def entropy(counts: NDArray[np.int64]) -> float:
    """Nats a token that knowing only frequencies costs: a language model worth its name goes below."""
    shares = counts[counts > 0] / counts.sum()
    return round(float(-(shares * np.log(shares)).sum()), 4)


def histogram(sizes: NDArray[np.int64]) -> dict[str, int]:
    """How many are at least 1, 2, 4, ... long, and shorter than the next."""
    edges = np.array([*BINS, np.iinfo(np.int64).max])
    return {f"{edge}+": int(n) for edge, n in zip(BINS, np.histogram(sizes, edges)[0], strict=True) if n}


def warnings(card: dict[str, Any]) -> list[str]:
    found = []
    if card["documents"] == 1:
        found.append("one document only: next-sentence prediction has no other document to draw from; "
                     "put a blank line between documents, or pre-train without it (objective=masked)")  # fmt: skip
    if card["unknown rate"] > 0.02:
        found.append(f"{card['unknown rate']:.1%} of the tokens are unknown to the vocabulary; train one on this text")
    if card["sentences"] == card["documents"]:
        found.append("every document is one sentence: there are no following sentences to learn from (objective=masked)")
    return found


A_BYTE = 8


def bits_per_byte(nats: float, card: dict[str, Any]) -> float | None:
    """Of the text of a corpus at `nats` a token; None where its card does not tell, having left out or not counted some."""
    unknown = card.get("unknown bytes", None if card["unknown rate"] else 0)
    if not card.get("bytes") or unknown is None:
        return None
    return float(nats / math.log(2) * card["tokens"] + A_BYTE * unknown) / float(card["bytes"])
