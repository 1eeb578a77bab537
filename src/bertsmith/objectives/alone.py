"""Pseudo-perplexity: every word of a text hidden alone, the rest in sight (Salazar et al. 2020)."""

from collections.abc import Iterator

import numpy as np
import torch

from ..corpus.store import Corpus
from ..model.layout import Layout
from ..model.types import Batch, Inputs
from ..random import shuffled
from .base import Ints

LONGEST = 64  # tokens of a text: the cost is its square


def alone(corpus: Corpus, documents: Ints, length: int, tokens: int, seed: int, limit: int) -> Iterator[Batch]:
    """Batches of copies of held-out sentences, each copy with one word hidden; about `limit` tokens of them in all."""
    tokenizer, spent = corpus.tokenizer, 0
    sentences = np.concatenate([np.arange(corpus.documents[d], corpus.documents[d + 1]) for d in documents])
    for number in sentences[shuffled(len(sentences), seed, "alone")]:
        body = corpus.tokens[corpus.sentences[number] : corpus.sentences[number + 1]][: min(length, LONGEST) - 2].astype(
            np.int64
        )
        ids = np.concatenate([[tokenizer.cls], body, [tokenizer.sep]])
        where = np.flatnonzero(~tokenizer.special[ids])
        for some in np.array_split(where, -(-len(where) * len(ids) // tokens)) if len(where) else []:
            yield _copies(ids, some, tokenizer.mask)
        spent += len(where) * len(ids)
        if spent >= limit:
            return


def _copies(ids: Ints, where: Ints, mask: int) -> Batch:
    rows = np.tile(ids, (len(where), 1))
    rows[np.arange(len(where)), where] = mask
    layout = Layout.of([len(ids)] * len(where))
    places = np.arange(len(where)) * len(ids) + where
    targets = {"where": torch.from_numpy(places), "words": torch.from_numpy(ids[where])}
    return Batch(Inputs(torch.from_numpy(rows.ravel()), layout), targets, {"words": len(where)})
