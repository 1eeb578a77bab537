"""The loss and reports of a model on batches it does not learn from."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .distributed import Ranks
from .logging import Meter, Tally
from .loss import Batch, Loss, Objective, checked
from .param_groups import set_rates
from .precision import Prepared


@torch.no_grad()
def judged(objective: Objective, batches: Iterable[Batch], prepared: Prepared) -> dict[str, float]:
    """Means over all batches, without dropout; the model is left in the mode it was in."""
    model, device, autocast, _ = prepared
    training, meter = model.training, Meter()
    carry: tuple[Tensor, ...] = ()
    model.eval()
    try:
        for batch in batches:
            with autocast():
                loss = checked(objective.loss(model, batch.to(device), carry), batch)
            meter.add_loss(loss, batch)
            carry = loss.carry
    finally:
        model.train(training)
    return meter.read().means()


class Outcome(NamedTuple):
    """What the micro-batches of an update came to, over all ranks."""

    tally: Tally  # parts of the loss, reports and `norm`, before clipping
    tokens: int
    carry: tuple[Tensor, ...]


class Pending(NamedTuple):
    """The same, still on its way through the device."""

    meter: Meter
    loss: Tensor | float
    norm: Tensor | float
    tokens: int
    carry: tuple[Tensor, ...]


class Update:
    """`gradients` first; then `read` what they look like, and `apply` or `skip`.

    One GPU need not wait for that: `attempt` applies them before they are read, unless they are as the guard objects to.
    """

    def __init__(self, objective: Objective, prepared: Prepared, ranks: Ranks, optimizer: Optimizer, clip: float) -> None:
        self.objective, self.ranks, self.optimizer, self.clip = objective, ranks, optimizer, clip
        self.model, self.device, self.autocast, self.scaler = prepared
        self.weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        decides = isinstance(optimizer, torch.optim.AdamW) and self.device.type == "cuda" and ranks.count == 1
        self.decides = decides and not self.scaler.is_enabled()  # the optimizer itself can leave an update out

    def gradients(self, batches: list[tuple[int, Batch]], carry: tuple[Tensor, ...]) -> Pending:
        """Each batch comes with the seed of its dropout. Waits for nothing."""
        counts, tokens = self._sizes([batch for _, batch in batches])
        meter, total = Meter(), torch.zeros((), device=self.device)
        for seed, batch in batches:
            torch.manual_seed(seed)
            with self.autocast():
                loss = checked(self.objective.loss(self.model, batch.to(self.device), carry), batch)
                whole, price = _divided(loss, counts), _price(self.model)
            if isinstance(price, Tensor):  # in equal shares: an update asks for it once
                whole = whole + price / (len(batches) * self.ranks.count)
                meter.add("price", price, 1)
            if whole.requires_grad:  # a batch without targets has nothing to say
                self.scaler.scale(whole).backward()
            meter.add_loss(loss, batch)
            total = total + whole.detach()
            carry = tuple(tensor.detach() for tensor in loss.carry)
        self.ranks.sum_gradients(self.weights)
        norm = self._clipped()
        meter.add("norm", norm, 1)
        return Pending(meter, total, norm, tokens, carry)

    def attempt(self, pending: Pending, rate: float, limit: float) -> None:
        """Applies the gradients where they are finite and no longer than `limit`, without asking the host."""
        norm = torch.as_tensor(pending.norm, device=self.device).double()
        bad = ~(torch.isfinite(pending.loss) & torch.isfinite(norm) & (norm <= limit))  # type: ignore[arg-type]
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # the word of torch's optimizers for this
        self.apply(rate)

    def read(self, pending: Pending) -> Outcome:
        """Waits for the device, once an update."""
        return Outcome(self.ranks.together(pending.meter.read()), pending.tokens, pending.carry)

    def apply(self, rate: float) -> None:
        set_rates(self.optimizer, rate)
        if self._moved():
            self.scaler.step(self.optimizer)
        self.skip()

    def skip(self) -> None:
        """Leaves the weights as they are; the fp16 scale still learns from what happened."""
        if self._moved():
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def overflowed(self, loss: float, norm: float) -> bool:
        """fp16 ran out of room, which a smaller scale cures: no fault of the data."""
        if not self.scaler.is_enabled() or not math.isfinite(loss) or math.isfinite(norm):
            return False
        return self.scaler.get_scale() > 1

    def _sizes(self, batches: list[Batch]) -> tuple[dict[str, int], int]:
        """Targets of each part and tokens, of the whole update and all ranks: known before the first backward pass."""
        mine: dict[str, int] = {}
        for batch in batches:
            for name, count in batch.counts.items():
                mine[name] = mine.get(name, 0) + count
        shares = self.ranks.gathered((mine, sum(batch.tokens for batch in batches)))
        names = {name: None for counts, _ in shares for name in counts}
        return {name: sum(counts.get(name, 0) for counts, _ in shares) for name in names}, sum(n for _, n in shares)

    def _clipped(self) -> Tensor | float:
        """The norm of the gradient, which is at most `clip` long afterwards."""
        if not self._moved():
            return 0.0
        self.scaler.unscale_(self.optimizer)
        if self.clip:
            return nn.utils.clip_grad_norm_(self.weights, self.clip)
        return nn.utils.get_total_norm([weight.grad for weight in self.weights if weight.grad is not None])

    def _moved(self) -> bool:
        return any(weight.grad is not None for weight in self.weights)


def _price(model: nn.Module) -> Tensor | float:
    """What the model asks for itself, whatever it learns: no target is to blame for it."""
    return model.penalty() if hasattr(model, "penalty") else 0.0  # type: ignore[operator]


def _divided(loss: Loss, counts: dict[str, int]) -> Tensor:
    """Each part by all its targets of the update: accumulation is then exact, whatever the micro-batches hold."""
    return torch.stack([part.float() / max(1, counts[name]) for name, part in loss.parts.items()]).sum()
