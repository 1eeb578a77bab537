"""A band along the diagonal: each token meets those within reach, at a cost linear in the tokens."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_BLOCK_SIZE = 128  # queries at a time: fewer waste less at the edges of the band, more keep the cores busy


@dataclass(frozen=True)
class BlockBand:
    """Tokens cut in blocks; a block's queries meet the keys from `reach` before its first to `reach` behind its last.

    Blocks ignore where sequences begin, and `visible` hides what lies across a border: packing costs no padding here.
    """

    num_tokens: int
    half_window: int
    causal: bool = False
    max_block_size: int = MAX_BLOCK_SIZE  # queries of a block

    @property
    def block_size(self) -> int:
        return min(self.half_window, self.max_block_size)

    @property
    def num_blocks(self) -> int:
        return (
            self.num_tokens // self.block_size + 1
        )  # the last is never full: an exact fit would need a compiled graph of its own

    @property
    def keys_per_block(self) -> int:
        """Keys of a block."""
        return self.block_size + self.half_window * (1 if self.causal else 2)

    def to_query_blocks(self, x: Tensor, pad_value: int = 0) -> Tensor:
        """(.., tokens, width) -> (.., blocks, block, width)"""
        return F.pad(x, (0, 0, 0, self.block_size - self.num_tokens % self.block_size), value=pad_value).unflatten(
            -2, (-1, self.block_size)
        )

    def to_key_blocks(self, x: Tensor, pad_value: int = 0, past: Tensor | None = None) -> Tensor:
        """(.., tokens, width) -> (.., blocks, sight, width): views of one another, which nobody may write to.

        `before` is what stands before the first token, (.., reach, width), if something does.
        """
        after = self.block_size - self.num_tokens % self.block_size + (0 if self.causal else self.half_window)
        x, lead = (x, self.half_window) if past is None else (torch.cat([past, x], -2), 0)
        return F.pad(x, (0, 0, lead, after), value=pad_value).unfold(-2, self.keys_per_block, self.block_size).mT

    def from_query_blocks(self, x: Tensor) -> Tensor:
        """(.., blocks, block, width) -> (.., tokens, width)"""
        return x.flatten(-3, -2).narrow(-2, 0, self.num_tokens)

    def relative_positions(self, device: torch.device) -> Tensor:
        """(block, sight): how far each key lies ahead of each query."""
        keys = torch.arange(self.keys_per_block, device=device) - self.half_window
        return keys - torch.arange(self.block_size, device=device)[:, None]

    def attention_mask(self, seq_id: Tensor, past_seq_id: Tensor | None = None) -> Tensor:
        """(.., tokens) -> (.., blocks, block, sight): within reach, and with one owner; `before` as in `keys`."""
        ahead, seq_id = self.relative_positions(seq_id.device), seq_id[..., None]
        near = (ahead >= -self.half_window) & (ahead <= (0 if self.causal else self.half_window))
        return (
            self.to_query_blocks(seq_id, -1)
            == self.to_key_blocks(seq_id, -1, None if past_seq_id is None else past_seq_id[..., None]).mT
        ) & near

    def add_key_blocks(self, total: Tensor, key_blocks: Tensor, first_block: int) -> None:
        """Adds (heads, blocks, sight, width), of the blocks from `first` on, where their keys came from: keys of a block lie
        in it and in those around it."""
        blocks, sight = key_blocks.shape[1:3]
        for number, start in enumerate(range(0, sight, self.block_size)):
            size = min(self.block_size, sight - start)
            total[:, first_block + number : first_block + number + blocks, :size] += key_blocks[:, :, start : start + size]
