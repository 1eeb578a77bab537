"""Several processes that share one update, when torchrun started them."""

import atexit
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import UserError
from .logging import MetricSums

T = TypeVar("T")


def world_size() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def init_distributed(device: torch.device, gradient_accumulation_steps: int) -> "DistributedState":
    """Joins the other processes, if there are any."""
    count = world_size()
    if count == 1:
        return DistributedState()
    if gradient_accumulation_steps % count:
        near = -(-gradient_accumulation_steps // count) * count
        raise UserError(
            f"train.accumulate = {gradient_accumulation_steps} micro-batches cannot be shared evenly by {count} processes; "
            f"make it a multiple of {count}, such as {near}"
        )
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_shut_down)
    facts = dist.new_group(backend="gloo") if device.type == "cuda" else dist.group.WORLD
    return DistributedState(dist.get_rank(), count, facts)


def _shut_down() -> None:
    """Together: one that hangs up while another still listens makes the other abort on its way out."""
    if dist.is_initialized():
        with suppress(RuntimeError):  # a peer that was killed comes to no meeting
            if dist.get_backend() == "gloo":
                dist.monitored_barrier(timeout=timedelta(seconds=10))
        dist.destroy_process_group()


@dataclass(frozen=True)
class DistributedState:
    """Alone, every method gives back what it was given."""

    rank: int = 0
    world_size: int = 1
    cpu_group: Any = None  # the group over which plain values travel, on the host

    @property
    def is_main_process(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    def local_micro_batches(self, micro_batches: int) -> range:
        return range(self.rank, micro_batches, self.world_size)

    def all_gather(self, value: T) -> list[T]:
        """Everyone's value, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def broadcast(self, value: T) -> T:
        """The leader's value: clocks differ, decisions must not."""
        return self.all_gather(value)[0]

    def any_rank(self, flag: bool) -> bool:
        return any(self.all_gather(flag))

    def reduce_metrics(self, metrics: MetricSums) -> MetricSums:
        whole = MetricSums()
        for part in self.all_gather(metrics.sums):
            whole.add(MetricSums(part))
        return whole

    def broadcast_weights(self, model: nn.Module) -> None:
        """Everyone begins with the leader's weights."""
        if self.world_size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def all_reduce_grads(self, parameters: list[nn.Parameter]) -> None:
        """One flat sum over all ranks; a weight that had no gradient anywhere still has none."""
        if self.world_size == 1:
            return
        had = parameters[0].new_tensor([float(weight.grad is not None) for weight in parameters])
        flat = torch.cat([had, *(_grad_or_zeros(weight).flatten() for weight in parameters)])
        dist.all_reduce(flat)
        sums = flat[len(parameters) :].split([weight.numel() for weight in parameters])
        for weight, anywhere, total in zip(parameters, flat[: len(parameters)].tolist(), sums, strict=True):
            weight.grad = total.view_as(weight) if anywhere else None


def _grad_or_zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
