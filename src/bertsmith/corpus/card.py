"""The data card of a corpus (card.json): sizes, unigram entropy, length histograms, warnings; and bits per byte."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tokenization.tokenizer import Tokenizer
from .store import DOCUMENTS_FILE, SENTENCES_FILE, TOKENS_FILE, WORD_STARTS_FILE

CHUNK_TOKENS = 1 << 22  # tokens per chunk when counting
LENGTH_BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

BITS_IN_BYTE = 8


def build_card(folder: Path, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> dict[str, Any]:
    """The contents of card.json, computed from the corpus files."""
    sentences = np.memmap(folder / SENTENCES_FILE, np.int64, "r")
    documents = np.fromfile(folder / DOCUMENTS_FILE, np.int64)
    counts = count_unigrams(np.memmap(folder / TOKENS_FILE, dtype, "r"), len(tokenizer))
    tokens, sizes = int(counts.sum()), np.diff(sentences)
    card = {"documents": len(documents) - 1, "sentences": len(sizes), "tokens": tokens, "dtype": dtype.name}
    card |= {
        "vocab_size": len(tokenizer),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "has_word_boundaries": (folder / WORD_STARTS_FILE).exists(),
    }
    card |= {
        "unknown_rate": round(float(counts[tokenizer.unk_token_id]) / tokens, 6),
        "unigram_entropy": unigram_entropy(counts),
    }
    card |= {"max_sentence_length": int(sizes.max()), "sentence_lengths": length_histogram(sizes)}
    return card | {"document_lengths": length_histogram(np.diff(documents)), "warnings": card_warnings(card)}


def count_unigrams(tokens: NDArray[Any], vocab_size: int) -> NDArray[np.int64]:
    """(vocab_size,): count of each token id."""
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, len(tokens), CHUNK_TOKENS):
        counts += np.bincount(tokens[start : start + CHUNK_TOKENS], minlength=vocab_size)
    return counts


def unigram_entropy(counts: NDArray[np.int64]) -> float:
    """Entropy of the unigram distribution in nats per token: the loss of the unigram baseline."""
    probs = counts[counts > 0] / counts.sum()
    return round(float(-(probs * np.log(probs)).sum()), 4)


def length_histogram(lengths: NDArray[np.int64]) -> dict[str, int]:
    """Number of lengths in [1, 2), [2, 4), [4, 8), ...; empty bins are left out."""
    edges = np.array([*LENGTH_BINS, np.iinfo(np.int64).max])
    return {f"{edge}+": int(count) for edge, count in zip(LENGTH_BINS, np.histogram(lengths, edges)[0], strict=True) if count}


def card_warnings(card: dict[str, Any]) -> list[str]:
    """Warnings about properties of the corpus that limit pre-training."""
    messages = []
    if card["documents"] == 1:
        messages.append("the corpus is a single document: next-sentence prediction needs a second one for its negative "
                     "pairs; put a blank line between documents, or pre-train with objective=mlm")  # fmt: skip
    if card["unknown_rate"] > 0.02:
        messages.append(
            f"{card['unknown_rate']:.1%} of the tokens are [UNK]; use a tokenizer that was trained on text like this, "
            "with subwords (kind=wordpiece) or a larger vocab_size"
        )
    if card["sentences"] == card["documents"]:
        messages.append("every document is a single sentence: there are no sentence pairs; pre-train with objective=mlm")
    return messages


def bits_per_byte(nll: float, card: dict[str, Any]) -> float | None:
    """Bits per UTF-8 byte of the corpus text at a loss of `nll` nats per token; [UNK] words cost 8 bits per byte.

    None if the card does not have the byte counts (duplicates dropped, or built by an old version).
    """
    unknown_bytes = card.get("unknown_bytes", None if card["unknown_rate"] else 0)
    if not card.get("bytes") or unknown_bytes is None:
        return None
    return float(nll / math.log(2) * card["tokens"] + BITS_IN_BYTE * unknown_bytes) / float(card["bytes"])
