"""Data parallelism over the processes that torchrun started: each computes some micro-batches of every update."""

import atexit
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import UserError
from ..runs import world_size
from .logging import MetricSums

T = TypeVar("T")


def join_ranks(device: torch.device, gradient_accumulation_steps: int) -> "Ranks":
    """Initializes the process group (nccl on CUDA, else gloo) if there are several processes."""
    num_processes = world_size()
    if num_processes == 1:
        return Ranks()
    if gradient_accumulation_steps % num_processes:
        next_multiple = -(-gradient_accumulation_steps // num_processes) * num_processes
        raise UserError(
            f"train.gradient_accumulation_steps = {gradient_accumulation_steps} micro-batches cannot be divided among "
            f"{num_processes} processes; set it to a multiple of {num_processes}, such as {next_multiple}"
        )
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_shut_down)
    cpu_group = dist.new_group(backend="gloo") if device.type == "cuda" else dist.group.WORLD
    return Ranks(dist.get_rank(), num_processes, cpu_group)


def _shut_down() -> None:
    """Leaves the process group after a barrier: a rank that exits early would make the others abort."""
    if dist.is_initialized():
        with suppress(RuntimeError):  # a rank that was killed never reaches the barrier
            if dist.get_backend() == "gloo":
                dist.monitored_barrier(timeout=timedelta(seconds=10))
        dist.destroy_process_group()


@dataclass(frozen=True)
class Ranks:
    """Rank, world size and the collectives that training needs; with one process they return their argument."""

    rank: int = 0
    world_size: int = 1
    cpu_group: Any = None  # gloo group for Python objects

    @property
    def is_main_process(self) -> bool:
        """Rank 0, which writes files and prints."""
        return self.rank == 0

    def local_micro_batches(self, micro_batches: int) -> range:
        """Indices of the micro-batches of an update that this rank computes."""
        return range(self.rank, micro_batches, self.world_size)

    def all_gather(self, value: T) -> list[T]:
        """The value of every rank, in rank order (pickled, on the host)."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def broadcast(self, value: T) -> T:
        """The value of rank 0, for decisions that depend on clocks or files."""
        return self.all_gather(value)[0]

    def any_rank(self, flag: bool) -> bool:
        """True if `flag` is True on at least one rank."""
        return any(self.all_gather(flag))

    def reduce_metrics(self, metrics: MetricSums) -> MetricSums:
        """Sums over all ranks."""
        total = MetricSums()
        for sums in self.all_gather(metrics.sums):
            total.add(MetricSums(sums))
        return total

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copies the weights of rank 0 to all ranks."""
        if self.world_size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def all_reduce_grads(self, parameters: list[nn.Parameter]) -> None:
        """Sums gradients over all ranks in one flat all-reduce; a parameter without grad on every rank keeps grad None."""
        if self.world_size == 1:
            return
        has_grad = parameters[0].new_tensor([float(parameter.grad is not None) for parameter in parameters])
        flat = torch.cat([has_grad, *(_grad_or_zeros(parameter).flatten() for parameter in parameters)])
        dist.all_reduce(flat)
        sums = flat[len(parameters) :].split([parameter.numel() for parameter in parameters])
        for parameter, grad_count, grad in zip(parameters, flat[: len(parameters)].tolist(), sums, strict=True):
            parameter.grad = grad.view_as(parameter) if grad_count else None


def _grad_or_zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
