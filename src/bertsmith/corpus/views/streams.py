"""Streams: row b of a batch goes on where row b of the one before it ended, for models that remember."""

from typing import Annotated

import numpy as np

from ...config import Variant
from ...random import shuffled
from ..store import Corpus
from .base import Ints, Plan
from .windows import Windows


class Streams(Variant, frozen=True):
    """Windows in the order of the text, documents in an order of the epoch's own; a batch has one of each stream.

    `Plan.flow` is where a sample ends in the corpus, and where the one it goes on from did: whatever the length is then.
    """

    across: Annotated[bool, "what is remembered goes on from a document into the next, as if they were one text"] = False

    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        order = documents[shuffled(len(documents), seed, "document order", epoch)]
        plan = Windows().plan(corpus, order, length, seed, epoch)
        borders = corpus.borders
        opens = borders[np.searchsorted(borders, plan.starts)] == plan.starts
        before = np.where(opens & (not self.across), -1, np.concatenate([[-1], plan.ends])[:-1])
        return Plan(plan.starts, plan.ends, plan.first, plan.names, flow=np.stack([plan.ends, before], -1))

    def rows(self, samples: int, rows: int) -> list[Ints]:
        """The samples of each batch: one of every stream, a stream being a run of samples; the last ones may be shorter."""
        rows = min(rows, samples)
        sizes = samples // max(rows, 1) + (np.arange(rows) < samples % max(rows, 1))
        begins = sizes.cumsum() - sizes
        return [begins[sizes > number] + number for number in range(int(sizes.max(initial=0)))]
