"""Packed windows: each document cut into runs of tokens of one length, at other places every epoch."""

from typing import Annotated

import numpy as np

from ...config import Variant
from ...rng import Stream, below, bits, shuffled
from ..store import Corpus
from .base import Ints, Plan, spread


class Windows(Variant, frozen=True):
    """Runs of tokens within a document, wherever sentences end."""

    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        room = length - 2
        begin, end = corpus.borders[documents], corpus.borders[documents + 1]
        lead = below(bits(seed, Stream.WINDOW_OFFSET, epoch, documents), np.minimum(room, end - begin))  # the first cut moves
        sizes = -(-(end - begin - lead) // room) + (lead > 0)
        owner = np.repeat(np.arange(len(documents)), sizes)
        nth = spread(np.zeros(len(documents), np.int64), sizes) - (lead > 0)[owner]
        starts = np.maximum(begin[owner], begin[owner] + lead[owner] + nth * room)
        ends = np.minimum(end[owner], begin[owner] + lead[owner] + (nth + 1) * room)
        return Plan.of(starts, ends, 1)


LANE = 64  # documents that follow one another; lanes are filled side by side


class DocSentences(Variant, frozen=True):
    """As many whole sentences of one document as fit."""

    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        starts, ends = _filled(corpus.sentences, corpus.borders[documents], corpus.borders[documents + 1], length - 2)
        return Plan.of(starts, ends, 1)


class FullSentences(Variant, frozen=True):
    """As many whole sentences as fit; at a document's end the next one follows, a [SEP] between them."""

    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        order = documents[shuffled(len(documents), seed, Stream.DOCUMENT_ORDER, epoch)]
        first, counts = corpus.documents[order], np.diff(corpus.documents)[order]
        sentences = spread(first, counts)
        sizes = np.diff(corpus.sentences)[sentences]
        opening = np.append(0, counts.cumsum())[:-1]  # the first sentence of each document, in this order
        sizes[opening] += 1  # for the [SEP] before it
        virtual = np.append(0, sizes.cumsum())  # the documents as one stream
        borders = np.append(virtual[opening], virtual[-1])
        lanes = np.append(borders[:-1][::LANE], borders[-1])
        starts, ends = _filled(virtual, lanes[:-1], lanes[1:], length - 2)
        return _cut_at(borders, corpus.borders[order], starts, ends)


def _filled(sentences: Ints, begin: Ints, end: Ints, room: int) -> tuple[Ints, Ints]:
    """Each stretch begin..end in runs of at most `room` tokens that end with a sentence, wherever one ends in time."""
    at, found = begin.copy(), []
    live = np.flatnonzero(at < end)
    while len(live):
        here = at[live]
        last = sentences[np.searchsorted(sentences, here + room, side="right") - 1]
        last = np.minimum(np.where(last > here, last, here + room), end[live])  # a sentence too long is cut
        found.append((live, here, last))
        at[live] = last
        live = live[last < end[live]]
    owner, starts, ends = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(owner, kind="stable")
    return starts[order], ends[order]


def _cut_at(borders: Ints, tokens: Ints, starts: Ints, ends: Ints) -> Plan:
    """Runs of the stream to spans of the corpus; the stream's first place in a document is its [SEP]."""
    first = np.searchsorted(borders, starts, side="right") - 1
    last = np.searchsorted(borders, ends, side="left")
    sizes = last - first
    run, document = np.repeat(np.arange(len(starts)), sizes), spread(first, sizes)
    begin = np.maximum(starts[run], borders[document] + 1) - borders[document] - 1 + tokens[document]
    stop = np.minimum(ends[run], borders[document + 1]) - borders[document] - 1 + tokens[document]
    kept = stop > begin  # a run may end with nothing but a document's [SEP]
    sizes = np.bincount(run[kept], minlength=len(starts))
    return Plan.of(begin[kept], stop[kept], sizes[sizes > 0])


class Streams(Variant, frozen=True):
    """Windows in the order of the text, documents in an order of the epoch's own; a batch has one of each stream.

    `Plan.flow` is where a sample ends in the corpus, and where the one it goes on from did: whatever the length is then.
    """

    across: Annotated[bool, "what is remembered goes on from a document into the next, as if they were one text"] = False

    def plan(self, corpus: Corpus, documents: Ints, length: int, seed: int, epoch: int) -> Plan:
        order = documents[shuffled(len(documents), seed, Stream.DOCUMENT_ORDER, epoch)]
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
