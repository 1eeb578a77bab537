"""Blocks one above another, each a mixer and a feed-forward with norms before or after."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import BadInput
from .mixers import Mixer
from .mixers.reformer.reversible import Sides, There, sided
from .packing import Layout
from .segment_memory import Memory, Past
from .sublayers import Join, halved

if TYPE_CHECKING:
    from .config import EncoderConfig


class Block(nn.Module):
    """Takes what was said last and the stream it belongs to, and gives the same, and what its mixer read.

    Norms after: what was said is the normed stream itself. Norms before: it is yet to join, which the next norm does.
    """

    def __init__(self, config: "EncoderConfig", first: bool = False) -> None:
        super().__init__()
        self.mixer: Mixer = config.mixer.build(config.width)
        self.feedforward = config.feedforward.build(config.width) if config.feedforward else None
        self.mixer_norm = config.joint(first)
        self.feedforward_norm = config.joint(first) if config.feedforward else None
        self.norm_first = config.norm == "before"

    def forward(
        self, said: Tensor | None, stream: Tensor, layout: Layout, wanted: Tensor | None = None, past: Past | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of every token, or of those wanted: once tokens have exchanged what they know, the others need no more work."""
        x = stream if said is None else said
        if self.norm_first:
            x, stream = self.mixer_norm(stream, said)
        read, mixed = x, self.mixer(x, layout) if past is None else self.mixer(x, layout, past)
        if wanted is not None:
            stream, mixed = stream.index_select(0, wanted), mixed.index_select(0, wanted)
        if self.feedforward is None or self.feedforward_norm is None:
            return (mixed, stream, read) if self.norm_first else (*self.mixer_norm(stream, mixed), read)
        x, stream = (self.feedforward_norm if self.norm_first else self.mixer_norm)(stream, mixed)
        said = self.feedforward(x)
        return (said, stream, read) if self.norm_first else (*self.feedforward_norm(stream, said), read)


class Stack(nn.Module):
    recompute = False  # activations are computed again on the way back, not kept: less memory, a third more work

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        groups = config.groups or config.layers
        if groups > config.layers:
            raise BadInput(f"{groups} different blocks for {config.layers} layers; lower model.groups")
        if config.residual != "all" and config.norm != "none":
            raise BadInput(f"model.residual={config.residual} is of stacks without norms; set model.norm=none, or leave it out")
        self.reversible, inside = config.reversible, sided(config)
        self.blocks = nn.ModuleList(Block(inside.at(number, groups), first=number == 0) for number in range(groups))
        self.turns = [int(layer / (config.layers / groups)) for layer in range(config.layers)]  # rounded as ALBERT does
        self.norm = config.join() if config.norm == "before" else nn.Identity()
        for block in self.blocks[1:]:
            block.mixer.share(self.blocks[0].mixer)  # type: ignore[union-attr, operator]

    def forward(
        self, x: Tensor, layout: Layout, kept: list[Tensor] | None = None, wanted: Tensor | None = None,
        memory: Memory | None = None,
    ) -> Tensor:  # fmt: skip
        """What leaves the last block, of the tokens wanted; what leaves each goes into `kept`, if somebody wants it."""
        if self.reversible and self.turns:
            return self._both_ways(x, layout, kept, wanted, memory)
        again = self.recompute and self.training
        stream = halved(x) if self.turns or wanted is None else halved(x).index_select(0, wanted)
        said: Tensor | None = None
        for number, turn in enumerate(self.turns, start=1):
            block, rows = self.blocks[turn], wanted if number == len(self.turns) else None
            past = memory.past(number - 1) if memory else None
            given = (said, stream, layout, rows, past)
            said, stream, read = checkpoint(block, *given, use_reentrant=False) if again else block(*given)
            if memory is not None:
                memory.keep(read, layout, past, self.mixers[number - 1])
            del read  # or it would be held while the next block works
            if kept is not None:
                said, stream = self._settled(said, stream)
                kept.append(stream)
        return self.norm(stream, said)[0] if isinstance(self.norm, Join) else stream

    def _both_ways(
        self, x: Tensor, layout: Layout, kept: list[Tensor] | None, wanted: Tensor | None, memory: Memory | None
    ) -> Tensor:
        """The same by blocks that can be run backwards."""
        blocks: list[Block] = [self.blocks[turn] for turn in self.turns]  # type: ignore[misc]
        sides, states = Sides.of(x, self.reversible), list[Tensor]()
        if kept is None:
            states.append(sides.through(There(blocks, layout, memory)).joined())
        else:  # what is looked at between blocks is kept
            for number, block in enumerate(blocks):
                sides = sides.through(There([block], layout, memory, first=number))
                states.append(sides.joined())
        states[-1] = states[-1] if wanted is None else states[-1].index_select(0, wanted)
        if kept is not None:
            kept.extend(states)
        return self.norm(halved(states[-1]), None)[0] if isinstance(self.norm, Join) else halved(states[-1])

    @property
    def mixers(self) -> list[Mixer]:
        """That of every layer; one that several layers share stands there several times."""
        return [self.blocks[turn].mixer for turn in self.turns]  # type: ignore[misc]

    def _settled(self, said: Tensor | None, stream: Tensor) -> tuple[Tensor | None, Tensor]:
        """The same with nothing left to join: the stream is what left the block."""
        if said is None or not isinstance(self.norm, Join):
            return said, stream
        return None, stream + F.dropout(said, self.norm.dropout, self.training)
