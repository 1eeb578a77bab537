"""A band along the diagonal: each token meets those within reach, at a cost linear in the tokens."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 128  # queries at a time: fewer waste less at the edges of the band, more keep the cores busy


@dataclass(frozen=True)
class Band:
    """Tokens cut in blocks; a block's queries meet the keys from `reach` before its first to `reach` behind its last.

    Blocks ignore where sequences begin, and `visible` hides what lies across a border: packing costs no padding here.
    """

    tokens: int
    reach: int
    causal: bool = False
    most: int = BLOCK  # queries of a block

    @property
    def block(self) -> int:
        return min(self.reach, self.most)

    @property
    def blocks(self) -> int:
        return self.tokens // self.block + 1  # the last is never full: an exact fit would need a compiled graph of its own

    @property
    def sight(self) -> int:
        """Keys of a block."""
        return self.block + self.reach * (1 if self.causal else 2)

    def queries(self, x: Tensor, fill: int = 0) -> Tensor:
        """(.., tokens, width) -> (.., blocks, block, width)"""
        return F.pad(x, (0, 0, 0, self.block - self.tokens % self.block), value=fill).unflatten(-2, (-1, self.block))

    def keys(self, x: Tensor, fill: int = 0, before: Tensor | None = None) -> Tensor:
        """(.., tokens, width) -> (.., blocks, sight, width): views of one another, which nobody may write to.

        `before` is what stands before the first token, (.., reach, width), if something does.
        """
        after = self.block - self.tokens % self.block + (0 if self.causal else self.reach)
        x, lead = (x, self.reach) if before is None else (torch.cat([before, x], -2), 0)
        return F.pad(x, (0, 0, lead, after), value=fill).unfold(-2, self.sight, self.block).mT

    def flat(self, x: Tensor) -> Tensor:
        """(.., blocks, block, width) -> (.., tokens, width)"""
        return x.flatten(-3, -2).narrow(-2, 0, self.tokens)

    def ahead(self, device: torch.device) -> Tensor:
        """(block, sight): how far each key lies ahead of each query."""
        keys = torch.arange(self.sight, device=device) - self.reach
        return keys - torch.arange(self.block, device=device)[:, None]

    def visible(self, owner: Tensor, before: Tensor | None = None) -> Tensor:
        """(.., tokens) -> (.., blocks, block, sight): within reach, and with one owner; `before` as in `keys`."""
        ahead, owner = self.ahead(owner.device), owner[..., None]
        near = (ahead >= -self.reach) & (ahead <= (0 if self.causal else self.reach))
        return (self.queries(owner, -1) == self.keys(owner, -1, None if before is None else before[..., None]).mT) & near

    def add(self, whole: Tensor, part: Tensor, first: int) -> None:
        """Adds (heads, blocks, sight, width), of the blocks from `first` on, where their keys came from: keys of a block lie
        in it and in those around it."""
        blocks, sight = part.shape[1:3]
        for number, start in enumerate(range(0, sight, self.block)):
            size = min(self.block, sight - start)
            whole[:, first + number : first + number + blocks, :size] += part[:, :, start : start + size]
