"""Sequences cut in chunks that lie in rings: the first has the last before it, and rounds follow one another."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .layout import Layout


@dataclass(frozen=True)
class Ring:
    """Every sequence is cut from its own beginning, so what is packed beside it changes nothing.

    There are as many chunks as any sequences of so many tokens may need, and a compiled graph serves any lengths.
    """

    chunk: int
    owner: Tensor  # (tokens,) in order
    sizes: Tensor  # (owners,): tokens of each
    rounds: int

    @classmethod
    def of(cls, layout: Layout, chunk: int, rounds: int) -> "Ring":
        owners = layout.sequences * (1 if layout.gapless else 2)  # padding of a row owns itself
        sizes = torch.zeros(owners, dtype=torch.long, device=layout.owner.device)
        sizes = sizes.index_add(0, layout.owner, torch.ones_like(layout.owner))
        return cls(chunk, layout.owner.sort(stable=True).values, sizes, rounds)

    @property
    def count(self) -> int:
        """Chunks of a round."""
        return self.owner.shape[0] // self.chunk + self.sizes.shape[0]

    @property
    def each(self) -> Tensor:
        """(owners,): chunks of each, one at least."""
        return ((self.sizes + self.chunk - 1) // self.chunk).clamp(min=1)

    @property
    def slots(self) -> Tensor:
        """(tokens,): where those of a round, sorted by owner, lie in its chunks."""
        before, chunks = self.sizes.cumsum(0) - self.sizes, self.each.cumsum(0) - self.each
        place = torch.arange(self.owner.shape[0], device=self.owner.device) - before[self.owner]
        return chunks[self.owner] * self.chunk + place

    def cut(self, x: Tensor, fill: int = 0) -> Tensor:
        """(rounds, heads, tokens, ...) to (heads, rounds x chunks, chunk, ...)"""
        room = x.new_full((*x.shape[:2], self.count * self.chunk, *x.shape[3:]), fill)
        return room.index_copy(2, self.slots, x).transpose(0, 1).unflatten(2, (self.count, self.chunk)).flatten(1, 2)

    def flat(self, x: Tensor) -> Tensor:
        """And back."""
        return x.unflatten(1, (self.rounds, self.count)).flatten(2, 3).transpose(0, 1).index_select(2, self.slots)

    def around(self, x: Tensor, before: int, after: int) -> Tensor:
        """(heads, rounds x chunks, chunk, ...) to the same of each chunk with its neighbours: the ring is a sequence's."""
        return torch.cat([x if step == 0 else x.index_select(1, self._next(step)) for step in range(-before, after + 1)], 2)

    def _next(self, step: int) -> Tensor:
        """(rounds x chunks,): for each chunk that which lies so many steps behind it."""
        ends = self.each.cumsum(0)
        chunk = torch.arange(self.count, device=ends.device)
        owner = torch.searchsorted(ends, chunk, right=True).clamp(max=len(ends) - 1)
        each, first = self.each[owner], (ends - self.each)[owner]
        turn = torch.arange(self.rounds, device=ends.device)[:, None]
        found = (turn * each + chunk - first + step) % (self.rounds * each)
        return (found // each * self.count + (first + found % each).clamp(max=self.count - 1)).flatten()
