"""Block-banded attention: each token attends to keys within `half_window` positions, at a cost linear in the tokens."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_BLOCK_SIZE = 128  # queries per block: small blocks waste less at the edges of the band, large ones use the cores better


@dataclass(frozen=True)
class BlockBand:
    """Tokens in blocks, whose queries attend to keys from `half_window` before the block to `half_window` after it.

    Blocks ignore sequence boundaries and `attention_mask` hides the keys of other sequences: packing needs no padding here.
    """

    num_tokens: int
    half_window: int
    causal: bool = False
    max_block_size: int = MAX_BLOCK_SIZE  # queries per block

    @property
    def block_size(self) -> int:
        return min(self.half_window, self.max_block_size)

    @property
    def num_blocks(self) -> int:
        # The last block is never full: an exact fit would need a compiled graph of its own.
        return self.num_tokens // self.block_size + 1

    @property
    def keys_per_block(self) -> int:
        """Number of keys that the queries of one block attend to."""
        return self.block_size + self.half_window * (1 if self.causal else 2)

    def to_query_blocks(self, x: Tensor, pad_value: int = 0) -> Tensor:
        """(.., tokens, dim) -> (.., num_blocks, block_size, dim)"""
        return F.pad(x, (0, 0, 0, self.block_size - self.num_tokens % self.block_size), value=pad_value).unflatten(
            -2, (-1, self.block_size)
        )

    def to_key_blocks(self, x: Tensor, pad_value: int = 0, past: Tensor | None = None) -> Tensor:
        """(.., tokens, dim) -> (.., num_blocks, keys_per_block, dim): overlapping views, which must not be written to.

        past: (.., half_window, dim), the rows before the first token, if there are any.
        """
        right_padding = self.block_size - self.num_tokens % self.block_size + (0 if self.causal else self.half_window)
        x, left_padding = (x, self.half_window) if past is None else (torch.cat([past, x], -2), 0)
        return (
            F.pad(x, (0, 0, left_padding, right_padding), value=pad_value).unfold(-2, self.keys_per_block, self.block_size).mT
        )

    def from_query_blocks(self, x: Tensor) -> Tensor:
        """(.., num_blocks, block_size, dim) -> (.., tokens, dim)"""
        return x.flatten(-3, -2).narrow(-2, 0, self.num_tokens)

    def relative_positions(self, device: torch.device) -> Tensor:
        """(block_size, keys_per_block): position of each key minus that of each query."""
        keys = torch.arange(self.keys_per_block, device=device) - self.half_window
        return keys - torch.arange(self.block_size, device=device)[:, None]

    def attention_mask(self, seq_id: Tensor, past_seq_id: Tensor | None = None) -> Tensor:
        """(.., tokens) -> (.., num_blocks, block_size, keys_per_block) bool: keys in the window and of the same sequence.

        past_seq_id: (.., half_window), of the rows before the first token (see `to_key_blocks`).
        """
        relative_positions, seq_id = self.relative_positions(seq_id.device), seq_id[..., None]
        in_window = (relative_positions >= -self.half_window) & (relative_positions <= (0 if self.causal else self.half_window))
        return (
            self.to_query_blocks(seq_id, -1)
            == self.to_key_blocks(seq_id, -1, None if past_seq_id is None else past_seq_id[..., None]).mT
        ) & in_window

    def add_key_blocks(self, total: Tensor, key_blocks: Tensor, first_block: int) -> None:
        """Adds per-block key gradients to `total`, the adjoint of `to_key_blocks`.

        key_blocks: (heads, blocks, keys_per_block, dim), of the blocks from `first_block` on; the keys of a block lie in it and
        in the blocks around it. total: (heads, blocks, block_size, dim), starting `half_window` before the first token.
        """
        num_blocks, num_keys = key_blocks.shape[1:3]
        for i, start in enumerate(range(0, num_keys, self.block_size)):
            size = min(self.block_size, num_keys - start)
            total[:, first_block + i : first_block + i + num_blocks, :size] += key_blocks[:, :, start : start + size]
