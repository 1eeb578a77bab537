"""One optimizer update over several micro-batches, and evaluation.

- evaluate: mean loss and metrics over batches, without gradients
- UpdateStep: forward and backward passes, clipping, optimizer step
"""

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
    """Mean loss and metrics over all batches, in eval mode; the training mode of the model is restored."""
    model, device, autocast, _ = prepared
    training, metrics = model.training, DeviceMetricSums()
    recurrent_state: tuple[Tensor, ...] = ()
    model.eval()
    try:
        for batch in batches:
            with autocast():
                loss = check_counts(objective.compute_loss(model, batch.to(device), recurrent_state), batch)
            metrics.add_loss(loss, batch)
            recurrent_state = loss.recurrent_state
    finally:
        model.train(training)
    return metrics.to_host().means()


class StepResult(NamedTuple):
    """Result of an update on the host, summed over micro-batches and ranks."""

    metrics: MetricSums  # losses, metrics of the objective, and `grad_norm` (before clipping)
    tokens: int
    recurrent_state: tuple[Tensor, ...]


class PendingStep(NamedTuple):
    """The same on the device, before synchronization."""

    metrics: DeviceMetricSums
    loss: Tensor | float
    grad_norm: Tensor | float
    tokens: int
    recurrent_state: tuple[Tensor, ...]


class UpdateStep:
    """One update: `compute_grads`, `fetch_result`, then `apply` or `skip`.

    On a single GPU (`optimizer_can_skip`), `apply_unless_anomalous` comes before `fetch_result`: the device decides, and the
    host does not have to wait for the loss before the optimizer step.
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
        self.parameters = [param for group in optimizer.param_groups for param in group["params"]]
        is_single_gpu_adamw = (
            isinstance(optimizer, torch.optim.AdamW) and self.device.type == "cuda" and dist_state.world_size == 1
        )
        # fused AdamW skips an update by `found_inf`
        self.optimizer_can_skip = is_single_gpu_adamw and not self.scaler.is_enabled()

    def compute_grads(self, batches: list[tuple[int, BatchLike]], recurrent_state: tuple[Tensor, ...]) -> PendingStep:
        """Forward and backward passes over (dropout seed, batch) pairs, and gradient clipping; does not synchronize."""
        counts, tokens = self._count_targets([batch for _, batch in batches])
        metrics, total_loss = DeviceMetricSums(), torch.zeros((), device=self.device)
        for seed, batch in batches:
            torch.manual_seed(seed)
            with self.autocast():
                loss = check_counts(self.objective.compute_loss(self.model, batch.to(self.device), recurrent_state), batch)
                mean_loss, penalty = _mean_loss(loss, counts), _model_penalty(self.model)
            if isinstance(penalty, Tensor):  # added once per update, in equal shares
                mean_loss = mean_loss + penalty / (len(batches) * self.dist_state.world_size)
                metrics.add("penalty", penalty, 1)
            if mean_loss.requires_grad:  # a batch without targets has no gradient
                self.scaler.scale(mean_loss).backward()
            metrics.add_loss(loss, batch)
            total_loss = total_loss + mean_loss.detach()
            recurrent_state = tuple(tensor.detach() for tensor in loss.recurrent_state)
        self.dist_state.all_reduce_grads(self.parameters)
        grad_norm = self._clip_grads()
        metrics.add("grad_norm", grad_norm, 1)
        return PendingStep(metrics, total_loss, grad_norm, tokens, recurrent_state)

    def apply_unless_anomalous(self, pending: PendingStep, lr: float, norm_limit: float) -> None:
        """Applies the update if the loss is finite and the gradient norm at most `norm_limit`, decided on the device."""
        grad_norm = torch.as_tensor(pending.grad_norm, device=self.device).double()
        is_anomalous = ~(torch.isfinite(pending.loss) & torch.isfinite(grad_norm) & (grad_norm <= norm_limit))  # type: ignore[arg-type]
        self.optimizer.found_inf = is_anomalous.float()  # type: ignore[attr-defined]  # torch's fused optimizers skip where it is 1
        self.apply(lr)

    def fetch_result(self, pending: PendingStep) -> StepResult:
        """Copies the result to the host: the one synchronization of an update."""
        return StepResult(self.dist_state.reduce_metrics(pending.metrics.to_host()), pending.tokens, pending.recurrent_state)

    def apply(self, lr: float) -> None:
        """Optimizer step at this learning rate; clears the gradients."""
        set_learning_rates(self.optimizer, lr)
        if self._has_grads():
            self.scaler.step(self.optimizer)
        self.skip()

    def skip(self) -> None:
        """Clears the gradients without a step; the fp16 loss scale is still updated."""
        if self._has_grads():
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def has_overflowed(self, loss: float, grad_norm: float) -> bool:
        """Whether the gradient overflowed fp16 (finite loss, non-finite norm), which a smaller loss scale will fix."""
        if not self.scaler.is_enabled() or not math.isfinite(loss) or math.isfinite(grad_norm):
            return False
        return self.scaler.get_scale() > 1

    def _count_targets(self, batches: list[BatchLike]) -> tuple[dict[str, int], int]:
        """Target counts by part and input tokens of the whole update, over all ranks; known before the first backward pass."""
        local_counts: dict[str, int] = {}
        for batch in batches:
            for name, count in batch.target_counts.items():
                local_counts[name] = local_counts.get(name, 0) + count
        per_rank = self.dist_state.all_gather((local_counts, sum(batch.num_tokens for batch in batches)))
        names = {name: None for counts, _ in per_rank for name in counts}
        return {name: sum(counts.get(name, 0) for counts, _ in per_rank) for name in names}, sum(
            tokens for _, tokens in per_rank
        )

    def _clip_grads(self) -> Tensor | float:
        """Clips the gradients to `max_grad_norm`; returns the norm before clipping."""
        if not self._has_grads():
            return 0.0
        self.scaler.unscale_(self.optimizer)
        if self.max_grad_norm:
            return nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        return nn.utils.get_total_norm([param.grad for param in self.parameters if param.grad is not None])

    def _has_grads(self) -> bool:
        return any(param.grad is not None for param in self.parameters)


def _model_penalty(model: nn.Module) -> Tensor | float:
    """Regularization term of the model (such as the span loss of adaptive span), which does not depend on targets."""
    return model.aux_loss() if hasattr(model, "aux_loss") else 0.0  # type: ignore[operator]


def _mean_loss(loss: Loss, counts: dict[str, int]) -> Tensor:
    """Sum over parts of (sum / targets of the whole update): gradient accumulation is then exact."""
    return torch.stack([part.float() / max(1, counts[name]) for name, part in loss.parts.items()]).sum()
