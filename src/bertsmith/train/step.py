"""The loss and reports of a model on batches it does not learn from."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .distributed import DistributedState
from .logging import DeviceMetricSums, MetricSums
from .loss import BatchLike, Loss, Objective, check_counts
from .param_groups import set_learning_rates
from .precision import PreparedModel


@torch.no_grad()
def evaluate(objective: Objective, batches: Iterable[BatchLike], prepared: PreparedModel) -> dict[str, float]:
    """Means over all batches, without dropout; the model is left in the mode it was in."""
    model, device, autocast, _ = prepared
    training, meter = model.training, DeviceMetricSums()
    carry: tuple[Tensor, ...] = ()
    model.eval()
    try:
        for batch in batches:
            with autocast():
                loss = check_counts(objective.compute_loss(model, batch.to(device), carry), batch)
            meter.add_loss(loss, batch)
            carry = loss.recurrent_state
    finally:
        model.train(training)
    return meter.to_host().means()


class StepResult(NamedTuple):
    """What the micro-batches of an update came to, over all ranks."""

    metrics: MetricSums  # parts of the loss, reports and `norm`, before clipping
    tokens: int
    recurrent_state: tuple[Tensor, ...]


class PendingStep(NamedTuple):
    """The same, still on its way through the device."""

    metrics: DeviceMetricSums
    loss: Tensor | float
    grad_norm: Tensor | float
    tokens: int
    recurrent_state: tuple[Tensor, ...]


class UpdateStep:
    """`gradients` first; then `read` what they look like, and `apply` or `skip`.

    One GPU need not wait for that: `attempt` applies them before they are read, unless they are as the guard objects to.
    """

    def __init__(
        self,
        objective: Objective,
        prepared: PreparedModel,
        dist_state: DistributedState,
        optimizer: Optimizer,
        max_grad_norm: float,
    ) -> None:
        self.objective, self.dist_state, self.optimizer, self.max_grad_norm = objective, dist_state, optimizer, max_grad_norm
        self.model, self.device, self.autocast, self.scaler = prepared
        self.parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
        decides = isinstance(optimizer, torch.optim.AdamW) and self.device.type == "cuda" and dist_state.world_size == 1
        self.optimizer_can_skip = decides and not self.scaler.is_enabled()  # the optimizer itself can leave an update out

    def compute_grads(self, batches: list[tuple[int, BatchLike]], recurrent_state: tuple[Tensor, ...]) -> PendingStep:
        """Each batch comes with the seed of its dropout. Waits for nothing."""
        counts, tokens = self._count_targets([batch for _, batch in batches])
        meter, total = DeviceMetricSums(), torch.zeros((), device=self.device)
        for seed, batch in batches:
            torch.manual_seed(seed)
            with self.autocast():
                loss = check_counts(self.objective.compute_loss(self.model, batch.to(self.device), recurrent_state), batch)
                whole, price = _mean_loss(loss, counts), _model_penalty(self.model)
            if isinstance(price, Tensor):  # in equal shares: an update asks for it once
                whole = whole + price / (len(batches) * self.dist_state.world_size)
                meter.add("price", price, 1)
            if whole.requires_grad:  # a batch without targets has nothing to say
                self.scaler.scale(whole).backward()
            meter.add_loss(loss, batch)
            total = total + whole.detach()
            recurrent_state = tuple(tensor.detach() for tensor in loss.recurrent_state)
        self.dist_state.all_reduce_grads(self.parameters)
        norm = self._clip_grads()
        meter.add("norm", norm, 1)
        return PendingStep(meter, total, norm, tokens, recurrent_state)

    def apply_unless_anomalous(self, pending: PendingStep, lr: float, norm_limit: float) -> None:
        """Applies the gradients where they are finite and no longer than `limit`, without asking the host."""
        norm = torch.as_tensor(pending.grad_norm, device=self.device).double()
        bad = ~(torch.isfinite(pending.loss) & torch.isfinite(norm) & (norm <= norm_limit))  # type: ignore[arg-type]
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # the word of torch's optimizers for this
        self.apply(lr)

    def fetch_result(self, pending: PendingStep) -> StepResult:
        """Waits for the device, once an update."""
        return StepResult(self.dist_state.reduce_metrics(pending.metrics.to_host()), pending.tokens, pending.recurrent_state)

    def apply(self, lr: float) -> None:
        set_learning_rates(self.optimizer, lr)
        if self._has_grads():
            self.scaler.step(self.optimizer)
        self.skip()

    def skip(self) -> None:
        """Leaves the weights as they are; the fp16 scale still learns from what happened."""
        if self._has_grads():
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def has_overflowed(self, loss: float, grad_norm: float) -> bool:
        """fp16 ran out of room, which a smaller scale cures: no fault of the data."""
        if not self.scaler.is_enabled() or not math.isfinite(loss) or math.isfinite(grad_norm):
            return False
        return self.scaler.get_scale() > 1

    def _count_targets(self, batches: list[BatchLike]) -> tuple[dict[str, int], int]:
        """Targets of each part and tokens, of the whole update and all ranks: known before the first backward pass."""
        mine: dict[str, int] = {}
        for batch in batches:
            for name, count in batch.target_counts.items():
                mine[name] = mine.get(name, 0) + count
        shares = self.dist_state.all_gather((mine, sum(batch.num_tokens for batch in batches)))
        names = {name: None for counts, _ in shares for name in counts}
        return {name: sum(counts.get(name, 0) for counts, _ in shares) for name in names}, sum(n for _, n in shares)

    def _clip_grads(self) -> Tensor | float:
        """The norm of the gradient, which is at most `clip` long afterwards."""
        if not self._has_grads():
            return 0.0
        self.scaler.unscale_(self.optimizer)
        if self.max_grad_norm:
            return nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        return nn.utils.get_total_norm([weight.grad for weight in self.parameters if weight.grad is not None])

    def _has_grads(self) -> bool:
        return any(weight.grad is not None for weight in self.parameters)


def _model_penalty(model: nn.Module) -> Tensor | float:
    """What the model asks for itself, whatever it learns: no target is to blame for it."""
    return model.penalty() if hasattr(model, "penalty") else 0.0  # type: ignore[operator]


def _mean_loss(loss: Loss, counts: dict[str, int]) -> Tensor:
    """Each part by all its targets of the update: accumulation is then exact, whatever the micro-batches hold."""
    return torch.stack([part.float() / max(1, counts[name]) for name, part in loss.parts.items()]).sum()
