"""Adversarial training: a batch is paid for as it is, and again with its embeddings moved where it hurts most."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..config import Config, Count, Positive
from ..model.layout import Layout
from ..model.model import Model
from ..model.types import Batch
from ..train.loss import Loss, Objective


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
