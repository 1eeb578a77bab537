"""Fine-tuning: examples with their answers, and what each kind of task pays for a wrong one."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..corpus.batches import cuts
from ..model.heads import HeadConfig, TextHead, TokenHead
from ..model.layout import Layout
from ..model.model import Model
from ..model.types import Batch, Inputs
from ..random import shuffled
from ..tasks import Answering, Choose, Classify, Regress, Tag, TaskConfig
from ..tasks.base import Encoded
from ..train.loss import Loss
from .base import Ints

IGNORED = -100


@dataclass(frozen=True)
class Supervised:
    """One task as an objective; its head is called `task`."""

    task: TaskConfig

    def heads(self) -> dict[str, HeadConfig]:
        kind = TextHead if self.task.head == "text" else TokenHead
        return {"task": kind(outputs=self.task.outputs)}

    def scores(self, model: Model, batch: Batch) -> Tensor:
        """A row a sequence, or an example where its windows are joined, or a token."""
        hidden, layout = model(batch.inputs), batch.inputs.layout
        if self.task.head != "text":
            return model.scores("task", hidden)
        rows = hidden[layout.firsts]
        if "joined" in batch.targets:  # the windows of one document, as one
            owner = batch.targets["joined"]
            sums = rows.new_zeros(int(owner[-1]) + 1, rows.shape[1]).index_add(0, owner, rows)
            rows = sums / torch.bincount(owner).to(rows.dtype)[:, None]
        return model.scores("task", rows)

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        scores, task = self.scores(model, batch).float(), self.task
        if isinstance(task, Answering):
            return self._spans(scores, batch)
        label = batch.targets["label"]
        if isinstance(task, Regress):
            return Loss({"task": F.mse_loss(scores[:, 0], label, reduction="sum")})
        if isinstance(task, Choose):
            scores = _options(scores[:, 0], batch.targets["group"])
        weights = _weights(task, scores)
        if isinstance(task, Classify) and task.many:
            total = F.binary_cross_entropy_with_logits(scores, label, pos_weight=weights, reduction="sum") / task.outputs
            return Loss({"task": total})
        total = F.cross_entropy(scores, label, weight=weights, ignore_index=IGNORED, reduction="sum")
        right = (scores.argmax(-1) == label).sum()
        return Loss({"task": total}, {"accuracy": (right, batch.counts["task"])})

    def _spans(self, scores: Tensor, batch: Batch) -> Loss:
        """Two softmaxes over the places of each sequence."""
        layout = batch.inputs.layout
        grid = layout.grid(scores).masked_fill(~layout.real()[..., None], float("-inf"))
        parts = [F.cross_entropy(grid[..., i], batch.targets[name], reduction="sum") for i, name in enumerate(("start", "end"))]
        return Loss({"task": (parts[0] + parts[1]) / 2})


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


def _options(scores: Tensor, group: Tensor) -> Tensor:
    """(options,) -> (examples, most options): -inf where an example has fewer."""
    counts = torch.bincount(group)
    starts = counts.cumsum(0) - counts
    grid = scores.new_full((counts.shape[0], int(counts.max())), float("-inf"))
    return grid.index_put((group, torch.arange(len(group), device=group.device) - starts[group]), scores)


def _weights(task: TaskConfig, like: Tensor) -> Tensor | None:
    table = task.class_weights() if isinstance(task, Classify) else None
    return None if table is None else torch.from_numpy(table).to(like)
