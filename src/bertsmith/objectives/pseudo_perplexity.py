"""Pseudo-perplexity: every word of a text hidden alone, the rest in sight (Salazar et al. 2020)."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ..corpus.store import Corpus
from ..model.batch import Batch, Inputs
from ..model.packing import Layout
from ..rng import Stream, shuffled
from .base import Ints

LONGEST = 64  # tokens of a text: the cost is its square


Copy = tuple[Ints, int]  # a sentence, and where a word of it is hidden


def alone(corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int, limit: int) -> Iterator[Batch]:
    """Batches of copies of held-out sentences, each copy with one word hidden; about `limit` tokens of them in all."""
    some, size = list[Copy](), 0
    for ids, where in _copies(corpus, documents, length, seed, limit):
        if some and size + len(ids) > tokens:
            yield _batch(some, corpus.tokenizer.mask)
            some, size = [], 0
        some.append((ids, where))
        size += len(ids)
    if some:
        yield _batch(some, corpus.tokenizer.mask)


def _copies(corpus: Corpus, documents: Ints, length: int, seed: int, limit: int) -> Iterator[Copy]:
    tokenizer, spent = corpus.tokenizer, 0
    sentences = np.concatenate([np.arange(corpus.documents[d], corpus.documents[d + 1]) for d in documents])
    for number in sentences[shuffled(len(sentences), seed, Stream.PSEUDO_PERPLEXITY)]:
        body = corpus.tokens[corpus.sentences[number] : corpus.sentences[number + 1]][: min(length, LONGEST) - 2]
        ids = np.concatenate([[tokenizer.cls], body.astype(np.int64), [tokenizer.sep]])
        where = np.flatnonzero(~tokenizer.special[ids])
        yield from ((ids, int(place)) for place in where)
        spent += len(where) * len(ids)
        if spent >= limit:
            return


def _batch(copies: Sequence[Copy], mask: int) -> Batch:
    ids, sizes = np.concatenate([ids for ids, _ in copies]), np.array([len(ids) for ids, _ in copies])
    places = sizes.cumsum() - sizes + np.array([where for _, where in copies])
    targets = {"where": torch.from_numpy(places), "words": torch.from_numpy(ids[places])}
    ids[places] = mask
    return Batch(Inputs(torch.from_numpy(ids), Layout.of(sizes)), targets, {"words": len(copies)})
