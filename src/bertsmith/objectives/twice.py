"""R-Drop: a batch is read twice, with other tokens dropped out, and the readings should agree."""

from dataclasses import dataclass, replace

from torch import Tensor

from ..model.model import Model
from ..model.types import Batch
from ..train.loss import Loss
from .supervised import Supervised


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
