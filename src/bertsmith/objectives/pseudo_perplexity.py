"""Pseudo-perplexity of a masked language model: each token is predicted with only itself masked (Salazar et al. 2020)."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ..corpus.store import Corpus
from ..model.batch import Inputs
from ..model.packing import Layout
from ..rng import Stream, permutation
from ..train.objective import Batch
from .base import Ints

MAX_TEXT_TOKENS = 64  # longer sentences are cut: the cost is quadratic in the length

MaskedCopy = tuple[Ints, int]  # (input_ids of a sentence, position of the masked token)


def pseudo_perplexity_batches(
    corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int, max_tokens: int
) -> Iterator[Batch[Inputs]]:
    """Batches of copies of sentences, each copy with one token masked; about `max_tokens` tokens in all."""
    copies, size = list[MaskedCopy](), 0
    for ids, position in _masked_copies(corpus, document_ids, max_length, seed, max_tokens):
        if copies and size + len(ids) > batch_tokens:
            yield _build_batch(copies, corpus.tokenizer.mask_token_id)
            copies, size = [], 0
        copies.append((ids, position))
        size += len(ids)
    if copies:
        yield _build_batch(copies, corpus.tokenizer.mask_token_id)


def count_masked_copy_tokens(corpus: Corpus, document_ids: Ints, max_tokens: int) -> float:
    """About how many tokens these batches have: each sentence is copied once per token."""
    num_tokens = int(np.diff(corpus.document_token_offsets)[document_ids].sum())
    num_sentences = int(np.diff(corpus.document_offsets)[document_ids].sum())
    return min(max_tokens, num_tokens * num_tokens / max(1, num_sentences))


def _masked_copies(corpus: Corpus, document_ids: Ints, max_length: int, seed: int, max_tokens: int) -> Iterator[MaskedCopy]:
    tokenizer, num_tokens = corpus.tokenizer, 0
    sentences = np.concatenate([np.arange(corpus.document_offsets[d], corpus.document_offsets[d + 1]) for d in document_ids])
    for sentence in sentences[permutation(len(sentences), seed, Stream.PSEUDO_PERPLEXITY)]:
        body = corpus.tokens[corpus.sentence_offsets[sentence] : corpus.sentence_offsets[sentence + 1]][
            : min(max_length, MAX_TEXT_TOKENS) - 2
        ]
        ids = np.concatenate([[tokenizer.cls_token_id], body.astype(np.int64), [tokenizer.sep_token_id]])
        positions = np.flatnonzero(~tokenizer.is_special[ids])
        yield from ((ids, int(position)) for position in positions)
        num_tokens += len(positions) * len(ids)
        if num_tokens >= max_tokens:
            return


def _build_batch(copies: Sequence[MaskedCopy], mask_id: int) -> Batch[Inputs]:
    ids, lengths = np.concatenate([ids for ids, _ in copies]), np.array([len(ids) for ids, _ in copies])
    output_indices = lengths.cumsum() - lengths + np.array([position for _, position in copies])
    targets = {"output_indices": torch.from_numpy(output_indices), "target_ids": torch.from_numpy(ids[output_indices])}
    ids[output_indices] = mask_id
    return Batch(Inputs(torch.from_numpy(ids), Layout.from_lengths(lengths)), targets, {"mlm": len(copies)})
