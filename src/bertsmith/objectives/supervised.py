"""Encoded examples as batches: what belongs together stays together, and batch k is a function of (seed, k)."""

from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..corpus.loader import cuts
from ..errors import BadInput
from ..model.batch import Batch, Inputs
from ..model.heads import HeadConfig, TextHead, TokenHead
from ..model.heads.crf import Chain, ChainHead, Chains
from ..model.heads.cross_attention import CrossHead, CrossScores
from ..model.heads.features import FeatureHead, Features, FeatureScores
from ..model.model import Model
from ..model.packing import Layout, means
from ..rng import Stream, shuffled
from ..tasks import Answering, Choose, Classify, Regress, Similar, Tag, TaskConfig
from ..tasks.base import Both, Cross, Encoded
from ..train.loss import Loss
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
        order = (
            shuffled(len(sizes), self.seed, Stream.EXAMPLE_ORDER, epoch) if self.shuffle else np.argsort(sizes, kind="stable")
        )
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


@dataclass(frozen=True)
class Supervised:
    """One task as an objective; its head is called `task`, what a CRF adds to it `chain`."""

    task: TaskConfig
    features: Features | None = None  # what a new head reads; without them the last layer

    def heads(self) -> dict[str, HeadConfig]:
        beside: dict[str, HeadConfig] = {"chain": ChainHead(tags=self.task.outputs)} if self.chained else {}
        if self.crossed:
            return {"task": self.crossed}
        if self.features:
            return {"task": FeatureHead(outputs=self.task.outputs, features=self.features), **beside}
        kind = TextHead if self.task.head == "text" else TokenHead
        return {"task": kind(outputs=self.task.outputs), **beside}

    @property
    def crossed(self) -> CrossHead | None:
        """The head of texts that are read each by itself."""
        pair = self.task.pair if isinstance(self.task, Classify | Regress) else None
        if isinstance(pair, Cross) and self.features:
            raise BadInput("features are what a plain head reads, and task.pair=cross has its own; leave one of them out")
        return CrossHead(outputs=self.task.outputs, blocks=pair.blocks) if isinstance(pair, Cross) else None

    @property
    def swapped(self) -> bool:
        return isinstance(self.task, Classify | Regress) and isinstance(self.task.pair, Both)

    @property
    def chained(self) -> bool:
        return isinstance(self.task, Tag) and self.task.crf

    def settled(self, model: Model) -> TaskConfig:
        """The task with what the model learnt for its decoding: the moves of a CRF. Most tasks stay as they are."""
        if not self.chained:
            return self.task
        moves = tuple(tuple(round(one, 6) for one in row) for row in _moves(model).tolist())
        return msgspec.structs.replace(self.task, moves=moves)

    def scores(self, model: Model, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """A row a sequence, or an example where its windows are joined, or a token; `hidden` are all rows, if known."""
        head, layout = model.heads["task"], batch.inputs.layout
        if isinstance(head, CrossScores):
            return model.scores("task", head.read(model(batch.inputs) if hidden is None else hidden, layout))
        if isinstance(head, FeatureScores):
            states: list[Tensor] = []
            states[-1:] = [model(batch.inputs, states)]  # the last layer as the encoder gives it, normed
            tokens = head.read(states, layout)
            rows = layout.mean(tokens)
        elif self.task.head == "text":
            rows = tokens = model.encoder.texts(batch.inputs, hidden)
        else:
            rows = tokens = model(batch.inputs) if hidden is None else hidden
        if self.task.head != "text":
            return model.scores("task", tokens)
        rows = joined(rows, batch)
        return model.scores("task", 2 * rows if self.swapped else rows)  # of two orders the sum, not the mean

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        return self.price(self.scores(model, batch).float(), batch, self.moves(model))

    def moves(self, model: Model) -> Tensor | None:
        """What the model's CRF scores each pair of neighbouring tags with; None for a task without one."""
        return _moves(model) if self.chained else None

    def price(self, scores: Tensor, batch: Batch, moves: Tensor | None = None) -> Loss:
        """What these scores cost, in sums over the targets; with a CRF, by the moves of the model's chain."""
        task = self.task
        if isinstance(task, Answering):
            places = torch.cat([batch.targets["start"], batch.targets["end"]])
            return Loss({"task": F.cross_entropy(self.choices(scores, batch), places, reduction="sum") / 2})
        label = batch.targets["label"]
        if isinstance(task, Regress):
            return Loss({"task": F.mse_loss(scores[:, 0], label, reduction="sum")})
        weights = _weights(task, scores)
        if isinstance(task, Classify) and task.many:
            total = F.binary_cross_entropy_with_logits(scores, label, pos_weight=weights, reduction="sum") / task.outputs
            return Loss({"task": total})
        scores = self.choices(scores, batch)
        if self.chained:
            total = self._chains(scores, batch, moves)
        else:
            total = F.cross_entropy(scores, label, weight=weights, ignore_index=IGNORED, reduction="sum")
        right = (scores.argmax(-1) == label).sum()
        return Loss({"task": total}, {"accuracy": (right, batch.counts["task"])})

    def _chains(self, scores: Tensor, batch: Batch, moves: Tensor | None) -> Tensor:
        """Counted by token, as without a CRF: a token weighs the same in a long sentence as in a short one."""
        assert isinstance(self.task, Tag) and moves is not None, "a CRF is priced by the moves of its model"
        label, owner = batch.targets["label"], batch.inputs.layout.owner
        known, table = (label != IGNORED).nonzero().squeeze(1), self.task.allowed()
        if not len(known):
            return scores.sum() * 0
        allowed = None if table is None else torch.from_numpy(table.copy()).to(scores.device)
        return Chains.of(scores[known], label[known], owner[known], batch.targets["whole"]).surprise(moves, allowed).sum()

    def choices(self, scores: Tensor, batch: Batch) -> Tensor:
        """(rows, choices): one softmax a row, over labels, options, or the places where an answer may begin, then end."""
        if isinstance(self.task, Choose):
            windows = batch.targets.get("windows")
            return _options((scores if windows is None else means(scores, windows))[:, 0], batch.targets["group"])
        if not isinstance(self.task, Answering):
            return scores
        layout = batch.inputs.layout
        grid = layout.grid(scores).masked_fill(~layout.real()[..., None], float("-inf"))
        return torch.cat(grid.unbind(-1))

    def apart(self, scores: Tensor, others: Tensor, batch: Batch) -> Tensor:
        """How much two readings of a batch differ, over its targets: symmetric KL, or squares where answers are numbers."""
        task = self.task
        if isinstance(task, Regress):
            return F.mse_loss(scores, others, reduction="sum")
        if isinstance(task, Classify) and task.many:
            scores, others = (torch.stack([x, torch.zeros_like(x)], -1) for x in (scores, others))
            return _divergence(scores, others).sum() / task.outputs
        apart = _divergence(self.choices(scores, batch), self.choices(others, batch))
        if isinstance(task, Tag):
            apart = apart[batch.targets["label"] != IGNORED]
        return apart.sum() / (2 if isinstance(task, Answering) else 1)


def _moves(model: Model) -> Tensor:
    chain = model.heads["chain"]
    assert isinstance(chain, Chain)
    return chain.moves


def joined(rows: Tensor, batch: Batch) -> Tensor:
    """The windows of one document as one, their mean; otherwise every sequence by itself."""
    if "joined" not in batch.targets:
        return rows
    return means(rows, batch.targets["joined"])


def _divergence(scores: Tensor, others: Tensor) -> Tensor:
    """(..., choices) twice -> (...): the mean of KL one way and the other; impossible choices cost nothing."""
    never = scores == float("-inf")
    left, right = (x.log_softmax(-1).masked_fill(never, 0.0) for x in (scores, others))
    return ((left.exp() - right.exp()) * (left - right)).sum(-1) / 2


def _options(scores: Tensor, group: Tensor) -> Tensor:
    """(options,) -> (examples, most options): -inf where an example has fewer."""
    counts = torch.bincount(group)
    starts = counts.cumsum(0) - counts
    grid = scores.new_full((counts.shape[0], int(counts.max())), float("-inf"))
    return grid.index_put((group, torch.arange(len(group), device=group.device) - starts[group]), scores)


def _weights(task: TaskConfig, like: Tensor) -> Tensor | None:
    table = task.class_weights() if isinstance(task, Classify) else None
    return None if table is None else torch.from_numpy(table).to(like)
