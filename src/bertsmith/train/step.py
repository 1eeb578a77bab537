"""One optimizer update over several micro-batches, and evaluation."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .anomaly import AnomalyDetector
from .logging import DeviceMetricSums, MetricSums
from .objective import Batch, Loss, Objective, check_counts
from .param_groups import set_learning_rates
from .setup import TrainSetup


class StepResult(NamedTuple):
    """Result of an update on the host, summed over micro-batches and ranks."""

    metrics: MetricSums  # losses, metrics of the objective, and `grad_norm` (before clipping)
    tokens: int
    recurrent_state: tuple[Tensor, ...]  # for the next update; unchanged if this one was skipped
    skip_reason: str | None  # why the weights were not updated

    def means(self) -> dict[str, float]:
        """Mean of each metric; there is always a `loss`."""
        return {"loss": 0.0, **self.metrics.means()}


class UpdateStep:
    """Updates the weights once: gradients over the micro-batches, clipping, then an optimizer step unless it is anomalous.

    On a single GPU with AdamW (`device_decides`), the device itself skips an anomalous update, so the host does not wait for
    the loss before the optimizer step.
    """

    def __init__(self, setup: TrainSetup, objective: Objective) -> None:
        self.setup, self.objective, self.optimizer, self.scaler = setup, objective, setup.optimizer, setup.scaler
        self.parameters = [param for group in setup.optimizer.param_groups for param in group["params"]]
        is_adamw = isinstance(setup.optimizer, torch.optim.AdamW)  # fused AdamW skips an update by `found_inf`
        self.device_decides = (
            is_adamw and setup.device.type == "cuda" and setup.ranks.world_size == 1 and not setup.scaler.is_enabled()
        )

    def __call__(
        self,
        batches: list[tuple[int, Batch[Any]]],
        lr: float,
        recurrent_state: tuple[Tensor, ...],
        anomaly_detector: AnomalyDetector,
        prefetch: Callable[[], None] = lambda: None,
    ) -> StepResult:
        """Updates the weights from (dropout seed, micro-batch) pairs at learning rate `lr`.

        prefetch: called while the device computes, before the one synchronization of the update.
        """
        # 1. Gradients, accumulated over the micro-batches; each part of the loss is divided by all its targets in the update.
        counts, tokens = self._count_targets([batch for _, batch in batches])
        metrics, total_loss = DeviceMetricSums(), torch.zeros((), device=self.setup.device)
        new_state = recurrent_state
        for seed, batch in batches:
            torch.manual_seed(seed)
            with self.setup.autocast():
                loss = check_counts(
                    self.objective.compute_loss(self.setup.model, batch.to(self.setup.device), new_state), batch
                )
                mean_loss, penalty = _mean_loss(loss, counts), _model_penalty(self.setup.model)
            if isinstance(penalty, Tensor):  # added once per update, in equal shares
                mean_loss = mean_loss + penalty / (len(batches) * self.setup.ranks.world_size)
                metrics.add("penalty", penalty, 1)
            if mean_loss.requires_grad:  # a batch without targets has no gradient
                self.scaler.scale(mean_loss).backward()
            metrics.add_loss(loss, batch)
            total_loss = total_loss + mean_loss.detach()
            new_state = tuple(tensor.detach() for tensor in loss.recurrent_state)

        # 2. Sum over ranks, and clip.
        self.setup.ranks.all_reduce_grads(self.parameters)
        grad_norm = self._clip_grads()
        metrics.add("grad_norm", grad_norm, 1)

        # 3. On a single GPU: apply, or skip on the device; the host goes on.
        if self.device_decides:
            norm = torch.as_tensor(grad_norm, device=self.setup.device).double()
            is_normal = torch.isfinite(total_loss) & torch.isfinite(norm) & (norm <= anomaly_detector.spike_threshold)
            self.optimizer.found_inf = (~is_normal).float()  # type: ignore[attr-defined]  # fused optimizers skip where it is 1
            self._apply(lr)
        prefetch()

        # 4. The one synchronization, and the same decision on the host.
        result = StepResult(self.setup.ranks.reduce_metrics(metrics.to_host()), tokens, new_state, None)
        means = result.means()
        if reason := self._overflow(means) or anomaly_detector.check(means["loss"], means["grad_norm"]):
            self._clear_grads()
            # the new recurrent state may be non-finite, too
            return result._replace(recurrent_state=recurrent_state, skip_reason=reason)

        # 5. Elsewhere: apply.
        if not self.device_decides:
            self._apply(lr)
        return result

    def _count_targets(self, batches: list[Batch[Any]]) -> tuple[dict[str, int], int]:
        """Target counts by part and input tokens of the whole update, over all ranks; known before the first backward pass."""
        local_counts: dict[str, int] = {}
        for batch in batches:
            for name, count in batch.target_counts.items():
                local_counts[name] = local_counts.get(name, 0) + count
        sums = {name: (float(count), 0.0) for name, count in local_counts.items()}
        num_tokens = float(sum(batch.num_tokens for batch in batches))
        per_rank = self.setup.ranks.gather_sums("targets", {**sums, "": (num_tokens, 0.0)})
        names = dict.fromkeys(name for counts in per_rank for name in counts)
        totals = {name: int(sum(counts[name][0] for counts in per_rank if name in counts)) for name in names}
        tokens = totals.pop("")
        return totals, tokens

    def _clip_grads(self) -> Tensor | float:
        """Clips the gradients to `train.max_grad_norm`; returns the norm before clipping."""
        if not self._has_grads():
            return 0.0
        self.scaler.unscale_(self.optimizer)
        if self.setup.config.max_grad_norm:
            return nn.utils.clip_grad_norm_(self.parameters, self.setup.config.max_grad_norm)
        return nn.utils.get_total_norm([param.grad for param in self.parameters if param.grad is not None])

    def _overflow(self, means: dict[str, float]) -> str | None:
        """The reason to skip if the gradient overflowed fp16 (finite loss, non-finite norm): a smaller loss scale fixes it."""
        if not self.scaler.is_enabled() or not math.isfinite(means["loss"]) or math.isfinite(means["grad_norm"]):
            return None
        return "fp16 overflow, the loss scale is halved" if self.scaler.get_scale() > 1 else None

    def _apply(self, lr: float) -> None:
        """Optimizer step at this learning rate; clears the gradients."""
        set_learning_rates(self.optimizer, lr)
        if self._has_grads():
            self.scaler.step(self.optimizer)
        self._clear_grads()

    def _clear_grads(self) -> None:
        """Clears the gradients and updates the fp16 loss scale, after a skipped update, too."""
        if self._has_grads():
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _has_grads(self) -> bool:
        return any(param.grad is not None for param in self.parameters)


def _model_penalty(model: nn.Module) -> Tensor | float:
    """Regularization term of the model (such as the span loss of adaptive span), which does not depend on targets."""
    return model.aux_loss() if hasattr(model, "aux_loss") else 0.0  # type: ignore[operator]


def _mean_loss(loss: Loss, counts: dict[str, int]) -> Tensor:
    """Sum over parts of (sum / targets of the whole update): gradient accumulation is then exact."""
    return torch.stack([part.float() / max(1, counts[name]) for name, part in loss.parts.items()]).sum()


@torch.no_grad()
def evaluate(setup: TrainSetup, objective: Objective, batches: Iterable[Batch[Any]]) -> dict[str, float]:
    """Mean loss and metrics over all batches, in eval mode; the training mode of the model is restored."""
    model, training, metrics = setup.model, setup.model.training, DeviceMetricSums()
    recurrent_state: tuple[Tensor, ...] = ()
    model.eval()
    try:
        for batch in batches:
            with setup.autocast():
                loss = check_counts(objective.compute_loss(model, batch.to(setup.device), recurrent_state), batch)
            metrics.add_loss(loss, batch)
            recurrent_state = loss.recurrent_state
    finally:
        model.train(training)
    return metrics.to_host().means()
