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

from ..errors import BadInput
from .logging import Tally

T = TypeVar("T")


def world() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def joined(device: torch.device, accumulate: int) -> "Ranks":
    """Joins the other processes, if there are any."""
    count = world()
    if count == 1:
        return Ranks()
    if accumulate % count:
        near = -(-accumulate // count) * count
        raise BadInput(
            f"train.accumulate = {accumulate} micro-batches cannot be shared evenly by {count} processes; "
            f"make it a multiple of {count}, such as {near}"
        )
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave)
    facts = dist.new_group(backend="gloo") if device.type == "cuda" else dist.group.WORLD
    return Ranks(dist.get_rank(), count, facts)


def _leave() -> None:
    """Together: one that hangs up while another still listens makes the other abort on its way out."""
    if dist.is_initialized():
        with suppress(RuntimeError):  # a peer that was killed comes to no meeting
            if dist.get_backend() == "gloo":
                dist.monitored_barrier(timeout=timedelta(seconds=10))
        dist.destroy_process_group()


@dataclass(frozen=True)
class Ranks:
    """Alone, every method gives back what it was given."""

    rank: int = 0
    count: int = 1
    facts: Any = None  # the group over which plain values travel, on the host

    @property
    def leader(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    def own(self, micro_batches: int) -> range:
        return range(self.rank, micro_batches, self.count)

    def gathered(self, value: T) -> list[T]:
        """Everyone's value, in the order of ranks."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self.facts)
        return values

    def first(self, value: T) -> T:
        """The leader's value: clocks differ, decisions must not."""
        return self.gathered(value)[0]

    def any(self, asked: bool) -> bool:
        return any(self.gathered(asked))

    def together(self, tally: Tally) -> Tally:
        whole = Tally()
        for part in self.gathered(tally.entries):
            whole.add(Tally(part))
        return whole

    def align(self, model: nn.Module) -> None:
        """Everyone begins with the leader's weights."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def sum_gradients(self, weights: list[nn.Parameter]) -> None:
        """One flat sum over all ranks; a weight that had no gradient anywhere still has none."""
        if self.count == 1:
            return
        had = weights[0].new_tensor([float(weight.grad is not None) for weight in weights])
        flat = torch.cat([had, *(_gradient(weight).flatten() for weight in weights)])
        dist.all_reduce(flat)
        sums = flat[len(weights) :].split([weight.numel() for weight in weights])
        for weight, anywhere, total in zip(weights, flat[: len(weights)].tolist(), sums, strict=True):
            weight.grad = total.view_as(weight) if anywhere else None


def _gradient(weight: nn.Parameter) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad
