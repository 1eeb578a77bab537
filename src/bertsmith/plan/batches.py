"""The micro-batches of a run, of its corpus or, where there is none, of sequences that are all as long as they may be."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ..corpus.ahead import Ahead
from ..corpus.batches import Arrays, Batches
from ..model.types import Batch
from ..objectives import ObjectiveConfig

LOOKED_AT = 16  # batches whose sizes stand for all
LOOPED = 64  # sequences that attention is walked through one by one, as a CPU does


def made_up(objective: ObjectiveConfig, tokens: int, length: int, vocabulary: int) -> Batch:
    """As many full sequences as fit, or the one that does not."""
    sizes = np.full(max(1, tokens // length), length)
    rng, count = np.random.default_rng(0), int(sizes.sum())
    where = np.sort(rng.choice(count, max(1, round(objective.rate * count)), replace=False))
    ids = rng.integers(0, vocabulary, count)
    segments = (np.arange(count) % length >= length // 2).astype(np.int64)
    return objective.batch(Arrays(ids, sizes, segments, where, ids[where], rng.integers(0, 2, len(sizes))))


def usual(reading: Batches) -> float:
    """Tokens of a micro-batch in the mean: the last sample that did not fit leaves room."""
    counts = [int(reading.rows(k)[0].lengths.sum()) for k in range(min(LOOKED_AT, reading.an_epoch))]
    return sum(counts) / len(counts)


def largest(reading: Batches, objective: ObjectiveConfig, vocabulary: int, gpu: bool) -> Batch:
    """The one to count memory by. On a GPU, or with very many sequences, the lengths do not matter, only their sum."""
    plans = [reading.rows(k) for k in range(min(LOOKED_AT, reading.an_epoch))]
    plan, epoch = max(plans, key=lambda rows: int(rows[0].lengths.sum()))
    if gpu or len(plan) > LOOPED:
        tokens, longest = int(plan.lengths.sum()), reading.length
        return made_up(objective, -(-tokens // longest) * longest, longest, vocabulary)
    return objective.batch(reading.maker(plan, epoch))


@contextmanager
def made_ahead(reading: Batches, objective: ObjectiveConfig, workers: int) -> Iterator[Callable[[int], Batch]]:
    """Micro-batch k as `pretrain` makes it, its workers at work."""
    with Ahead(reading.maker, workers) as ahead:
        yield lambda k: objective.batch(ahead(k, reading.rows))
