"""Encoded examples as batches: what belongs together stays together, and batch k is a function of (seed, k)."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from ..corpus.batches import cuts
from ..model.layout import Layout
from ..model.types import Batch, Inputs
from ..random import shuffled
from ..tasks import Choose, Similar, Tag, TaskConfig
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
    known: dict[int, list[Ints]] = field(default_factory=dict, compare=False, repr=False)  # the batches of the last epoch asked

    @cached_property
    def units(self) -> list[Ints]:
        """The sequences of each example that one batch must hold whole; else each sequence by itself."""
        count, compared = len(self.encoded.ids), isinstance(self.task, Choose | Similar) and bool(self.encoded.targets)
        if not compared and not self.joined:
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
        batches = self.known[epoch] if epoch in self.known else self._remembered(epoch)
        return self.made([self.units[i] for i in batches[place % len(batches)]])

    def made(self, units: list[Ints]) -> Batch:
        return batch(self.task, self.encoded, units, self.joined)

    def cut(self, epoch: int) -> list[Ints]:
        """The units of each batch; one that is larger than the budget has a batch of its own."""
        sizes = self.sizes
        order = shuffled(len(sizes), self.seed, "examples", epoch) if self.shuffle else np.argsort(sizes, kind="stable")
        return np.split(order, cuts(sizes[order], max(self.tokens, int(sizes.max()))))

    @cached_property
    def sizes(self) -> Ints:
        """(units,): tokens of each."""
        lengths = np.array([len(ids) for ids in self.encoded.ids])
        return np.add.reduceat(lengths, np.cumsum([0, *map(len, self.units[:-1])]))

    def _remembered(self, epoch: int) -> list[Ints]:
        """Of one epoch: the next needs another."""
        self.known.clear()
        return self.known.setdefault(epoch, self.cut(epoch))


def batch(task: TaskConfig, encoded: Encoded, units: list[Ints], joined: bool = False) -> Batch:
    """These sequences as a model takes them, with their targets where they are known."""
    chosen = np.concatenate(units)
    ids, segments = ([part[i] for i in chosen] for part in (encoded.ids, encoded.segments))
    layout = Layout.of([len(one) for one in ids], anchors=_anchors(task, segments))
    inputs = Inputs(torch.from_numpy(np.concatenate(ids)), layout, torch.from_numpy(np.concatenate(segments)))
    group = np.repeat(np.arange(len(units)), [len(unit) for unit in units])
    targets = {"joined": group} if joined else {}
    if isinstance(task, Choose | Similar):
        targets = _by_text(encoded, chosen, group, joined)
    targets |= _targets(task, encoded, chosen, [unit[0] for unit in units] if joined or targets else chosen)
    label = targets.get("label", targets.get("start", targets.get("texts")))
    count = (
        int((label != IGNORED).sum())
        if isinstance(task, Tag) and label is not None
        else len(chosen if label is None else label)
    )
    tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in targets.items()}
    return Batch(inputs, tensors, {"task": max(count, 1)})


def _anchors(task: TaskConfig, segments: list[Ints]) -> Ints | None:
    """Tokens that meet their whole sequence in a model of windows: [CLS], and the segment that the task names; None: [CLS]."""
    if (number := getattr(task, "anchored", None)) is None:
        return None
    marked = [one == number for one in segments]
    for one in marked:
        one[0] = True
    return np.flatnonzero(np.concatenate(marked))


def _by_text(encoded: Encoded, chosen: Ints, group: Ints, joined: bool) -> dict[str, Ints]:
    """`group`: the example of each text; and the text of each window, which the model joins or the loss averages."""
    first = np.array([encoded.facts[number].number == 0 for number in chosen])
    return {"group": group[first], "joined" if joined else "windows": np.cumsum(first) - 1}


def _targets(task: TaskConfig, encoded: Encoded, chosen: Ints, first: Ints | list[int]) -> dict[str, Ints]:
    if isinstance(task, Tag) and encoded.targets:
        ends, flat = encoded.ends, encoded.targets["label"]
        label = np.concatenate([flat[ends[i] - len(encoded.ids[i]) : ends[i]] for i in chosen])
        return {"label": label, **({"whole": encoded.targets["whole"][chosen]} if task.crf else {})}
    rows = encoded.example[np.asarray(first)] if isinstance(task, Choose) or first is not chosen else chosen
    return {name: value[rows] for name, value in encoded.targets.items()}
