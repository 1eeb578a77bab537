"""Data parallelism over the processes that torchrun started: each computes some micro-batches of every update."""

import atexit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import UserError, is_out_of_memory
from ..runs import world_size
from ..signals import RESUME_HINT
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


@contextmanager
def explain_dead_rank() -> Iterator[None]:
    """Turn the error of a collective operation that another rank has left into a UserError."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(
            f"another process of this run has ended: it failed, or was killed (SIGKILL, often for lack of memory); "
            f"{RESUME_HINT} ({reason})"
        ) from None


@dataclass(frozen=True)
class Ranks:
    """Rank, world size and the collectives that training needs; with one process they return their argument."""

    rank: int = 0
    world_size: int = 1
    cpu_group: Any = None  # gloo group for what is on the host
    known_names: dict[str, list[str]] = field(default_factory=dict, repr=False)  # by kind, see `gather_sums`

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
        with explain_dead_rank():
            dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def broadcast(self, value: T) -> T:
        """The value of rank 0, for decisions that depend on files."""
        return self.all_gather(value)[0]

    def gather_floats(self, values: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, in rank order: a small float64 tensor, cheap enough for every step."""
        if self.world_size == 1:
            return [list(values)]
        mine = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        with explain_dead_rank():
            dist.all_gather(gathered, mine, group=self.cpu_group)
        return [tensor.tolist() for tensor in gathered]

    def gather_sums(self, kind: str, sums: Mapping[str, tuple[float, float]]) -> list[dict[str, tuple[float, float]]]:
        """A few pairs of numbers by name, of every rank, in rank order.

        The names of a kind are exchanged (pickled) when a rank has a new one, in the first step as a rule; after that a step
        exchanges numbers alone: whether a rank lacks a name, and for each known name whether it is present, and its pair.
        """
        if self.world_size == 1:
            return [dict(sums)]
        names = self.known_names.setdefault(kind, [])
        row = [float(not sums.keys() <= set(names))]
        for name in names:
            row += [1.0, *sums[name]] if name in sums else [0.0, 0.0, 0.0]
        rows = self.gather_floats(row)
        if any(row[0] for row in rows):
            new_names = dict.fromkeys(name for rank_names in self.all_gather(list(sums)) for name in rank_names)
            names += [name for name in new_names if name not in names]
            return self.gather_sums(kind, sums)
        return [{name: (row[3 * i + 2], row[3 * i + 3]) for i, name in enumerate(names) if row[3 * i + 1]} for row in rows]

    def any_rank(self, flag: bool) -> bool:
        """True if `flag` is True on at least one rank."""
        return any(value for (value,) in self.gather_floats([flag]))

    def reduce_metrics(self, metrics: MetricSums) -> MetricSums:
        """Sums over all ranks."""
        total = MetricSums()
        for sums in self.gather_sums("metrics", metrics.sums):
            total.add(MetricSums(sums))
        return total

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copies the weights of rank 0 to all ranks."""
        if self.world_size > 1:
            with explain_dead_rank():
                for tensor in model.state_dict().values():
                    dist.broadcast(tensor, 0)

    def all_reduce_grads(self, parameters: list[nn.Parameter]) -> None:
        """Sums gradients over all ranks in one flat all-reduce; a parameter without grad on every rank keeps grad None."""
        if self.world_size == 1:
            return
        has_grad = parameters[0].new_tensor([float(parameter.grad is not None) for parameter in parameters])
        flat = torch.cat([has_grad, *(_grad_or_zeros(parameter).flatten() for parameter in parameters)])
        with explain_dead_rank():
            dist.all_reduce(flat)
        sums = flat[len(parameters) :].split([parameter.numel() for parameter in parameters])
        for parameter, grad_count, grad in zip(parameters, flat[: len(parameters)].tolist(), sums, strict=True):
            parameter.grad = grad.view_as(parameter) if grad_count else None


def _grad_or_zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
