"""Encoded examples as batches: what belongs together stays together, and batch k is a function of (seed, k)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ..corpus.batches import cuts
from ..model.layout import Layout
from ..model.types import Batch, Inputs
from ..random import shuffled
from ..tasks import Choose, Tag, TaskConfig
from ..tasks.base import Encoded
from .base import Ints

IGNORED = -100


@dataclass(frozen=True)
class Reading:
    """Batch k of encoded examples: sequences that belong together stay together, and budgets are in tokens."""

    task: TaskConfig
    encoded: Encoded
    tokens: int
    seed: int
    shuffle: bool = True

    @cached_property
    def units(self) -> list[Ints]:
        """The sequences of each example that one batch must hold whole; else each sequence by itself."""
        count = len(self.encoded.ids)
        if not isinstance(self.task, Choose) and not self.joined:
            return list(np.arange(count)[:, None])
        return np.split(np.arange(count), np.flatnonzero(np.diff(self.encoded.example)) + 1)

    @cached_property
    def joined(self) -> bool:
        return bool(self.encoded.facts) and getattr(self.encoded.facts[0], "pooled", False)

    @cached_property
    def an_epoch(self) -> int:
        return len(self.cut(0))

    def __call__(self, k: int, done: float = 0.0) -> Batch:
        epoch, place = divmod(k, self.an_epoch)
        batches = self.cut(epoch)
        return batch(self.task, self.encoded, [self.units[i] for i in batches[place % len(batches)]], self.joined)

    def cut(self, epoch: int) -> list[Ints]:
        """The units of each batch; one that is larger than the budget has a batch of its own."""
        sizes = np.array([sum(len(self.encoded.ids[s]) for s in unit) for unit in self.units])
        order = shuffled(len(sizes), self.seed, "examples", epoch) if self.shuffle else np.argsort(sizes, kind="stable")
        return np.split(order, cuts(sizes[order], max(self.tokens, int(sizes.max()))))


def batch(task: TaskConfig, encoded: Encoded, units: list[Ints], joined: bool = False) -> Batch:
    """These sequences as a model takes them, with their targets where they are known."""
    chosen = np.concatenate(units)
    ids, segments = ([part[i] for i in chosen] for part in (encoded.ids, encoded.segments))
    layout = Layout.of([len(one) for one in ids])
    inputs = Inputs(torch.from_numpy(np.concatenate(ids)), layout, torch.from_numpy(np.concatenate(segments)))
    group = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
    targets = {"group": group} if isinstance(task, Choose) else {"joined": group} if joined else {}
    targets |= _targets(task, encoded, chosen, [unit[0] for unit in units] if joined or targets else chosen)
    label = targets.get("label", targets.get("start"))
    count = (
        int((label != IGNORED).sum())
        if isinstance(task, Tag) and label is not None
        else len(chosen if label is None else label)
    )
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in targets.items()}
    return Batch(inputs, tensors, {"task": max(count, 1)})


def _targets(task: TaskConfig, encoded: Encoded, chosen: Ints, first: Ints | list[int]) -> dict[str, Ints]:
    if isinstance(task, Tag) and encoded.targets:
        ends = np.cumsum([len(ids) for ids in encoded.ids])
        flat = encoded.targets["label"]
        return {"label": np.concatenate([flat[ends[i] - len(encoded.ids[i]) : ends[i]] for i in chosen])}
    rows = encoded.example[np.asarray(first)] if isinstance(task, Choose) or first is not chosen else chosen
    return {name: value[rows] for name, value in encoded.targets.items()}
