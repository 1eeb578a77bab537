"""Blocks one above another, each a mixer and a feed-forward with norms before or after."""

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .layout import Layout
from .mixers import Mixer

if TYPE_CHECKING:
    from .encoder import EncoderConfig


class Block(nn.Module):
    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        self.mixer: Mixer = config.mixer.build(config.width)
        self.feedforward = config.feedforward.build(config.width)
        self.mixer_norm, self.feedforward_norm = config.layer_norm(), config.layer_norm()
        self.drop = nn.Dropout(config.dropout)
        self.norm_first = config.norm == "before"

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.norm_first:
            x = x + self.drop(self.mixer(self.mixer_norm(x), layout))
            return x + self.drop(self.feedforward(self.feedforward_norm(x)))
        x = self.mixer_norm(x + self.drop(self.mixer(x, layout)))
        return self.feedforward_norm(x + self.drop(self.feedforward(x)))


class Stack(nn.Module):
    recompute = False  # activations are computed again on the way back, not kept: less memory, a third more work

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = config.layer_norm() if config.norm == "before" else nn.Identity()

    def forward(self, x: Tensor, layout: Layout, kept: list[Tensor] | None = None) -> Tensor:
        """What leaves the last block; what leaves each goes into `kept`, if somebody wants it."""
        again = self.recompute and self.training
        for block in self.blocks:
            x = checkpoint(block, x, layout, use_reentrant=False) if again else block(x, layout)
            if kept is not None:
                kept.append(x)
        return self.norm(x)
