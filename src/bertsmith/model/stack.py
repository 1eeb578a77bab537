"""Blocks one above another, each a mixer and a feed-forward with norms before or after."""

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import BadInput
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

    def forward(self, x: Tensor, layout: Layout, wanted: Tensor | None = None) -> Tensor:
        """Of every token, or of those wanted: once tokens have exchanged what they know, the others need no more work."""
        mixed = self.mixer(self.mixer_norm(x) if self.norm_first else x, layout)
        if wanted is not None:
            x, mixed = x[wanted], mixed[wanted]
        x = x + self.drop(mixed)
        if self.norm_first:
            return x + self.drop(self.feedforward(self.feedforward_norm(x)))
        x = self.mixer_norm(x)
        return self.feedforward_norm(x + self.drop(self.feedforward(x)))


class Stack(nn.Module):
    recompute = False  # activations are computed again on the way back, not kept: less memory, a third more work

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        groups = config.groups or config.layers
        if groups > config.layers:
            raise BadInput(f"{groups} different blocks for {config.layers} layers; lower model.groups")
        self.blocks = nn.ModuleList(Block(config) for _ in range(groups))
        self.turns = [int(layer / (config.layers / groups)) for layer in range(config.layers)]  # rounded as ALBERT does
        self.norm = config.layer_norm() if config.norm == "before" else nn.Identity()

    def forward(self, x: Tensor, layout: Layout, kept: list[Tensor] | None = None, wanted: Tensor | None = None) -> Tensor:
        """What leaves the last block, of the tokens wanted; what leaves each goes into `kept`, if somebody wants it."""
        again = self.recompute and self.training
        for number, turn in enumerate(self.turns, start=1):
            block, rows = self.blocks[turn], wanted if number == len(self.turns) else None
            x = checkpoint(block, x, layout, rows, use_reentrant=False) if again else block(x, layout, rows)
            if kept is not None:
                kept.append(x)
        return self.norm(x)
