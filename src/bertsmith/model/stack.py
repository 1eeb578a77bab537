"""Blocks one above another, each a mixer and a feed-forward with norms before or after."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import BadInput
from .join import Join
from .layout import Layout
from .mixers import Mixer

if TYPE_CHECKING:
    from .encoder import EncoderConfig


class Block(nn.Module):
    """Takes what was said last and the stream it belongs to, and gives the same.

    Norms after: what was said is the normed stream itself. Norms before: it is yet to join, which the next norm does.
    """

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        self.mixer: Mixer = config.mixer.build(config.width)
        self.feedforward = config.feedforward.build(config.width)
        self.mixer_norm, self.feedforward_norm = config.join(), config.join()
        self.norm_first = config.norm == "before"

    def forward(
        self, said: Tensor | None, stream: Tensor, layout: Layout, wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Of every token, or of those wanted: once tokens have exchanged what they know, the others need no more work."""
        x, stream = self.mixer_norm(stream, said) if self.norm_first else (stream if said is None else said, stream)
        mixed = self.mixer(x, layout)
        if wanted is not None:
            stream, mixed = stream.index_select(0, wanted), mixed.index_select(0, wanted)
        x, stream = (self.feedforward_norm if self.norm_first else self.mixer_norm)(stream, mixed)
        said = self.feedforward(x)
        return (said, stream) if self.norm_first else self.feedforward_norm(stream, said)


class Stack(nn.Module):
    recompute = False  # activations are computed again on the way back, not kept: less memory, a third more work

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        groups = config.groups or config.layers
        if groups > config.layers:
            raise BadInput(f"{groups} different blocks for {config.layers} layers; lower model.groups")
        self.blocks = nn.ModuleList(Block(config) for _ in range(groups))
        self.turns = [int(layer / (config.layers / groups)) for layer in range(config.layers)]  # rounded as ALBERT does
        self.norm = config.join() if config.norm == "before" else nn.Identity()

    def forward(self, x: Tensor, layout: Layout, kept: list[Tensor] | None = None, wanted: Tensor | None = None) -> Tensor:
        """What leaves the last block, of the tokens wanted; what leaves each goes into `kept`, if somebody wants it."""
        again = self.recompute and self.training
        stream = halved(x)
        said: Tensor | None = None
        for number, turn in enumerate(self.turns, start=1):
            block, rows = self.blocks[turn], wanted if number == len(self.turns) else None
            given = (said, stream, layout, rows)
            said, stream = checkpoint(block, *given, use_reentrant=False) if again else block(*given)
            if kept is not None:
                said, stream = self._settled(said, stream)
                kept.append(stream)
        return self.norm(stream, said)[0] if isinstance(self.norm, Join) else stream

    def _settled(self, said: Tensor | None, stream: Tensor) -> tuple[Tensor | None, Tensor]:
        """The same with nothing left to join: the stream is what left the block."""
        if said is None or not isinstance(self.norm, Join):
            return said, stream
        return None, stream + F.dropout(said, self.norm.dropout, self.training)


def halved(x: Tensor) -> Tensor:
    """In the numbers that a GPU's matrices are multiplied in, if those are not its own: half the memory to move."""
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        return x.to(torch.get_autocast_dtype("cuda"))
    return x
