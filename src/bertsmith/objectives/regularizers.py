"""Adversarial training: a batch is paid for as it is, and again with its embeddings moved where it hurts most."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..config import Config, Count, Positive
from ..model.batch import Batch
from ..model.heads import HEAD, HeadConfig, WordHead
from ..model.model import Model
from ..model.packing import Layout
from ..train.loss import Loss, Objective
from .base import Ints
from .supervised import Reading, Supervised


class Adversary(Config, frozen=True):
    """One step along the gradient (FGM, Miyato et al. 2017), or several that stay near (PGD, Madry et al. 2018)."""

    size: Annotated[Positive, "how far the embeddings of a sequence are moved, at most"] = 1.0
    steps: Annotated[Count, "steps to get there, a pass through the model and back each"] = 1
    stride: Annotated[Positive, "how far one step goes"] = 1.0

    presets: ClassVar[dict[str, "Adversary"]] = {}


Adversary.presets.update({"fgm": Adversary(), "pgd": Adversary(steps=3, stride=0.3)})


@dataclass(frozen=True)
class Adversarial:
    """Any objective, made harder; judged without learning, it is as before."""

    inner: Objective
    adversary: Adversary

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.inner.loss(model, batch, carry)
        here = torch.zeros(batch.tokens, model.config.encoder.embedded, device=batch.inputs.tokens.device)
        clean, here = self._moved(model, batch, carry, here)
        for _ in range(self.adversary.steps - 1):
            _, here = self._moved(model, batch, carry, here)
        hard = self.inner.loss(model, _with(batch, here), carry)
        return replace(clean, parts={name: part + hard.parts[name] for name, part in clean.parts.items()})

    def _moved(self, model: Model, batch: Batch, carry: tuple[Tensor, ...], here: Tensor) -> tuple[Loss, Tensor]:
        """What it costs here, and one step farther from zero: uphill, each sequence by itself, at most `size` away."""
        here = here.requires_grad_()
        loss = self.inner.loss(model, _with(batch, here), carry)
        whole = torch.stack([part / max(1, batch.counts[name]) for name, part in loss.parts.items()]).sum()
        (slope,) = torch.autograd.grad(whole, here, retain_graph=True)
        layout, a = batch.inputs.layout, self.adversary
        there = here.detach() + a.stride * slope / _length(slope, layout)
        return loss, there * (a.size / _length(there, layout)).clamp(max=1.0)


def _with(batch: Batch, nudge: Tensor) -> Batch:
    return replace(batch, inputs=replace(batch.inputs, nudge=nudge))


def _length(x: Tensor, layout: Layout) -> Tensor:
    """(tokens, 1): of the vector that a whole sequence is, for each of its tokens; never 0."""
    squares = x.new_zeros(layout.sequences).index_add(0, layout.owner, x.square().sum(-1))
    return squares.sqrt().clamp(min=1e-20)[layout.owner, None]


@dataclass(frozen=True)
class Twice:
    """Liang et al. 2021: the mean price of the two readings, and `weight` times how far they are apart."""

    inner: Supervised
    weight: float

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        if not model.training:
            return self.inner.loss(model, batch, carry)
        first, second = (self.inner.scores(model, batch).float() for _ in range(2))
        loss, other = (self.inner.price(scores, batch, self.inner.moves(model)) for scores in (first, second))
        mean = (loss.parts["task"] + other.parts["task"]) / 2
        return replace(loss, parts={"task": mean + self.weight * self.inner.apart(first, second, batch)})


@dataclass(frozen=True)
class Aside:
    """Radford et al. 2018, section 3.2: what the task costs, and `weight` times what the next token does."""

    inner: Supervised
    weight: float

    def loss(self, model: Model, batch: Batch, carry: tuple[Tensor, ...] = ()) -> Loss:
        hidden = model(batch.inputs)
        task = self.inner.price(self.inner.scores(model, batch, hidden).float(), batch, self.inner.moves(model))
        rows = hidden.index_select(0, batch.targets["before"])
        total, right = model.entropy(HEAD, rows, batch.targets["next"])
        report = {**task.report, "next_accuracy": (right, batch.counts[HEAD])}
        return Loss({**task.parts, HEAD: self.weight * total}, report)


class Foretold(Reading):
    """Batches in which every token but the first of its sequence is also asked for, by the one before it."""

    def made(self, units: list[Ints]) -> Batch:
        batch = super().made(units)
        layout, tokens = batch.inputs.layout, batch.inputs.tokens
        before = (layout.owner[1:] == layout.owner[:-1]).nonzero().squeeze(1)
        targets = {**batch.targets, "before": before, "next": tokens[before + 1]}
        return replace(batch, targets=targets, counts={**batch.counts, HEAD: max(1, len(before))})


def head(given: dict[str, HeadConfig]) -> HeadConfig:
    """The one that pre-training left, or the table of tokens alone."""
    return given.get(HEAD, WordHead(transform=False, bias=False))


def begin(model: Model, base: Model) -> None:
    """With what the head of pre-training has of its own."""
    if HEAD in base.heads:
        weights: dict[str, Tensor] = base.heads[HEAD].state_dict()
        own = model.heads[HEAD].state_dict()
        model.heads[HEAD].load_state_dict({name: _rows(weights[name], mine) for name, mine in own.items()})


def _rows(old: Tensor, new: Tensor) -> Tensor:
    """Guide tokens are new words behind the old ones: they keep what they begin with."""
    return old if old.shape == new.shape else torch.cat([old, new[len(old) :]])
