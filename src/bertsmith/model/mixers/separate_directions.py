"""Two Transformers in one stack, left to right and right to left, each over its half of the channels (biLM of Transformers).

Peters et al. 2018, "Dissecting Contextual Word Embeddings", section 3.2. Every sublayer that mixes channels has two parts; the
first reads channels [0, hidden_size / 2) and attends to earlier tokens, the second the others and attends to later tokens.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..packing import Layout
from ..sublayers import AddNorm
from .base import LayerState, Mixer


class SeparateDirections(Mixer):
    """A causal mixer over one half of the channels, and another, over the reversed sequences, for the other half."""

    def __init__(self, build: Callable[[int], Mixer], hidden_size: int) -> None:
        """`build`: from the size of a half to a causal mixer."""
        super().__init__()
        if hidden_size % 2:
            raise UserError(f"model.hidden_size={hidden_size} must be even: each direction has half of the channels")
        self.directions = nn.ModuleList(build(hidden_size // 2) for _ in range(2))

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        (forward_mixer, backward_mixer), (left, right), order = self.mixers, x.chunk(2, -1), _reversed_order(layout)
        return torch.cat([forward_mixer(left, layout), backward_mixer(right[order], layout)[order]], -1)

    def attention_weights(self, x: Tensor, layout: Layout) -> Tensor:
        """The heads of the forward direction, then those of the backward one."""
        (forward_mixer, backward_mixer), (left, right), order = self.mixers, x.chunk(2, -1), _reversed_order(layout)
        backward_weights = backward_mixer.attention_weights(right[order], layout)
        # Row and column i of a sequence of n tokens are those of token n - 1 - i.
        position = torch.arange(layout.max_seqlen, device=x.device)
        order = (layout.cu_seqlens.diff()[:, None] - 1 - position) % layout.max_seqlen
        rows, columns = (index.expand_as(backward_weights) for index in (order[:, None, :, None], order[:, None, None]))
        backward_weights = backward_weights.gather(2, rows).gather(3, columns)
        return torch.cat([forward_mixer.attention_weights(left, layout), backward_weights], 1)

    @property
    def mixers(self) -> list[Mixer]:
        """Of the forward and of the backward direction."""
        return [cast(Mixer, mixer) for mixer in self.directions]


class SeparateFeedForward(nn.Module):
    """A feed-forward layer for each half of the channels; (tokens, hidden_size) in and out."""

    def __init__(self, build: Callable[[int], nn.Module], hidden_size: int) -> None:
        super().__init__()
        self.directions = nn.ModuleList(build(hidden_size // 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(half) for layer, half in zip(self.directions, x.chunk(2, -1), strict=True)], -1)


class SeparateAddNorm(nn.Module):
    """An `AddNorm` for each half of the channels."""

    def __init__(self, build: Callable[[int], AddNorm], hidden_size: int) -> None:
        super().__init__()
        norms = [build(hidden_size // 2) for _ in range(2)]
        self.directions, self.dropout = nn.ModuleList(norms), norms[0].dropout

    def forward(self, residual: Tensor, sublayer_out: Tensor | None) -> tuple[Tensor, Tensor]:
        """(input of the next sublayer, new residual), each (tokens, hidden_size)."""
        residuals = [half.contiguous() for half in residual.chunk(2, -1)]
        outs = [None, None] if sublayer_out is None else [half.contiguous() for half in sublayer_out.chunk(2, -1)]
        halves = [norm(half, out) for norm, half, out in zip(self.directions, residuals, outs, strict=True)]
        return torch.cat([normed for normed, _ in halves], -1), torch.cat([total for _, total in halves], -1)


def _reversed_order(layout: Layout) -> Tensor:
    """(tokens,): for each token the one at its place in the reversed sequence, padding staying behind; its own inverse."""

    def compute() -> Tensor:
        if not layout.is_packed:
            mask, position = layout.padding_mask(), layout.pad(layout.position)
            reversed_position = torch.where(mask, mask.sum(1, keepdim=True) - 1 - position, position)
            return layout.unpad(layout.cu_seqlens[:-1, None].long() + reversed_position)
        cu_seqlens = layout.cu_seqlens.long()
        first, last = cu_seqlens[:-1][layout.seq_id], cu_seqlens[1:][layout.seq_id] - 1
        return first + last - torch.arange(len(layout.seq_id), device=cu_seqlens.device)

    return cast(Tensor, layout.memoize("reversed_order", compute))
