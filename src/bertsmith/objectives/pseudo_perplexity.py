"""Pseudo-perplexity: every word of a text hidden alone, the rest in sight (Salazar et al. 2020)."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ..corpus.store import Corpus
from ..model.batch import Batch, Inputs
from ..model.packing import Layout
from ..rng import Stream, permutation
from .base import Ints

MAX_TEXT_TOKENS = 64  # tokens of a text: the cost is its square


MaskedCopy = tuple[Ints, int]  # a sentence, and where a word of it is hidden


def pseudo_perplexity_batches(
    corpus: Corpus, document_ids: Ints, max_length: int, batch_tokens: int, seed: int, max_tokens: int
) -> Iterator[Batch]:
    """Batches of copies of held-out sentences, each copy with one word hidden; about `limit` tokens of them in all."""
    some, size = list[MaskedCopy](), 0
    for ids, where in _masked_copies(corpus, document_ids, max_length, seed, max_tokens):
        if some and size + len(ids) > batch_tokens:
            yield _build_batch(some, corpus.tokenizer.mask_token_id)
            some, size = [], 0
        some.append((ids, where))
        size += len(ids)
    if some:
        yield _build_batch(some, corpus.tokenizer.mask_token_id)


def _masked_copies(corpus: Corpus, document_ids: Ints, max_length: int, seed: int, max_tokens: int) -> Iterator[MaskedCopy]:
    tokenizer, spent = corpus.tokenizer, 0
    sentences = np.concatenate([np.arange(corpus.document_offsets[d], corpus.document_offsets[d + 1]) for d in document_ids])
    for number in sentences[permutation(len(sentences), seed, Stream.PSEUDO_PERPLEXITY)]:
        body = corpus.tokens[corpus.sentence_offsets[number] : corpus.sentence_offsets[number + 1]][
            : min(max_length, MAX_TEXT_TOKENS) - 2
        ]
        ids = np.concatenate([[tokenizer.cls_token_id], body.astype(np.int64), [tokenizer.sep_token_id]])
        where = np.flatnonzero(~tokenizer.is_special[ids])
        yield from ((ids, int(place)) for place in where)
        spent += len(where) * len(ids)
        if spent >= max_tokens:
            return


def _build_batch(copies: Sequence[MaskedCopy], mask_id: int) -> Batch:
    ids, sizes = np.concatenate([ids for ids, _ in copies]), np.array([len(ids) for ids, _ in copies])
    places = sizes.cumsum() - sizes + np.array([where for _, where in copies])
    targets = {"where": torch.from_numpy(places), "words": torch.from_numpy(ids[places])}
    ids[places] = mask_id
    return Batch(Inputs(torch.from_numpy(ids), Layout.from_lengths(sizes)), targets, {"words": len(copies)})
