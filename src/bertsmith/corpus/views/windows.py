"""Packed windows: each document cut into runs of tokens of one length, at other places every epoch."""

import numpy as np

from ...config import Variant
from ...random import below, bits
from ..store import Corpus
from .base import Ints, Plan, spread


class Windows(Variant, frozen=True):
    """Runs of tokens within a document, wherever sentences end."""

    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        room = length - 2
        begin, end = corpus.borders[documents], corpus.borders[documents + 1]
        lead = below(bits(seed, "windows", epoch, documents), np.minimum(room, end - begin))  # the first cut moves
        sizes = -(-(end - begin - lead) // room) + (lead > 0)
        owner = np.repeat(np.arange(len(documents)), sizes)
        nth = spread(np.zeros(len(documents), np.int64), sizes) - (lead > 0)[owner]
        starts = np.maximum(begin[owner], begin[owner] + lead[owner] + nth * room)
        ends = np.minimum(end[owner], begin[owner] + lead[owner] + (nth + 1) * room)
        return Plan.of(starts, ends, 1)
