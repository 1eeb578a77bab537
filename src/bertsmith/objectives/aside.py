"""GPT's auxiliary objective: while a task is learnt, the texts of its examples are foretold as well."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..model.heads import HEAD, HeadConfig, WordHead
from ..model.model import Model
from ..model.types import Batch
from ..train.loss import Loss
from .base import Ints
from .reading import Reading
from .supervised import Supervised


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
