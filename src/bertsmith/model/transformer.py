"""Blocks one above another, each a mixer and a feed-forward with norms before or after."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import UserError
from .mixers import Mixer
from .mixers.reformer.reversible import ResidualStreams, ReversiblePass, reversible_block_config
from .packing import Layout
from .segment_memory import LayerMemory, SegmentMemory
from .sublayers import AddNorm, to_compute_dtype

if TYPE_CHECKING:
    from .config import EncoderConfig


class Block(nn.Module):
    """Takes what was said last and the stream it belongs to, and gives the same, and what its mixer read.

    Norms after: what was said is the normed stream itself. Norms before: it is yet to join, which the next norm does.
    """

    def __init__(self, config: "EncoderConfig", is_first: bool = False) -> None:
        super().__init__()
        self.mixer: Mixer = config.mixer.build(config.width)
        self.feedforward = config.feedforward.build(config.width) if config.feedforward else None
        self.mixer_norm = config.build_residual(is_first)
        self.feedforward_norm = config.build_residual(is_first) if config.feedforward else None
        self.norm_first = config.norm == "before"

    def forward(
        self,
        sublayer_out: Tensor | None,
        residual: Tensor,
        layout: Layout,
        output_indices: Tensor | None = None,
        layer_memory: LayerMemory | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of every token, or of those wanted: once tokens have exchanged what they know, the others need no more work."""
        x = residual if sublayer_out is None else sublayer_out
        if self.norm_first:
            x, residual = self.mixer_norm(residual, sublayer_out)
        read, mixed = x, self.mixer(x, layout) if layer_memory is None else self.mixer(x, layout, layer_memory)
        if output_indices is not None:
            residual, mixed = residual.index_select(0, output_indices), mixed.index_select(0, output_indices)
        if self.feedforward is None or self.feedforward_norm is None:
            return (mixed, residual, read) if self.norm_first else (*self.mixer_norm(residual, mixed), read)
        x, residual = (self.feedforward_norm if self.norm_first else self.mixer_norm)(residual, mixed)
        sublayer_out = self.feedforward(x)
        return (sublayer_out, residual, read) if self.norm_first else (*self.feedforward_norm(residual, sublayer_out), read)


class Stack(nn.Module):
    gradient_checkpointing = False  # activations are computed again on the way back, not kept: less memory, a third more work

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        groups = config.groups or config.layers
        if groups > config.layers:
            raise UserError(f"{groups} different blocks for {config.layers} layers; lower model.groups")
        if config.residual != "all" and config.norm != "none":
            raise UserError(
                f"model.residual={config.residual} is of stacks without norms; set model.norm=none, or leave it out"
            )
        self.reversible, inside = config.reversible, reversible_block_config(config)
        self.blocks = nn.ModuleList(Block(inside.for_layer(number, groups), is_first=number == 0) for number in range(groups))
        self.block_indices = [int(layer / (config.layers / groups)) for layer in range(config.layers)]  # rounded as ALBERT does
        self.norm = config.build_add_norm() if config.norm == "before" else nn.Identity()
        for block in self.blocks[1:]:
            block.mixer.tie_weights(self.blocks[0].mixer)  # type: ignore[union-attr, operator]

    def forward(
        self, x: Tensor, layout: Layout, all_hidden_states: list[Tensor] | None = None, output_indices: Tensor | None = None,
        memory: SegmentMemory | None = None,
    ) -> Tensor:  # fmt: skip
        """What leaves the last block, of the tokens wanted; what leaves each goes into `kept`, if somebody wants it."""
        if self.reversible and self.block_indices:
            return self._forward_reversible(x, layout, all_hidden_states, output_indices, memory)
        again = self.gradient_checkpointing and self.training
        stream = (
            to_compute_dtype(x)
            if self.block_indices or output_indices is None
            else to_compute_dtype(x).index_select(0, output_indices)
        )
        said: Tensor | None = None
        for number, turn in enumerate(self.block_indices, start=1):
            block, rows = self.blocks[turn], output_indices if number == len(self.block_indices) else None
            past = memory.get_layer(number - 1) if memory else None
            given = (said, stream, layout, rows, past)
            said, stream, read = checkpoint(block, *given, use_reentrant=False) if again else block(*given)
            if memory is not None:
                memory.append_layer(read, layout, past, self.mixers[number - 1])
            del read  # or it would be held while the next block works
            if all_hidden_states is not None:
                said, stream = self._add_pending_residual(said, stream)
                all_hidden_states.append(stream)
        return self.norm(stream, said)[0] if isinstance(self.norm, AddNorm) else stream

    def _forward_reversible(
        self,
        x: Tensor,
        layout: Layout,
        all_hidden_states: list[Tensor] | None,
        output_indices: Tensor | None,
        memory: SegmentMemory | None,
    ) -> Tensor:
        """The same by blocks that can be run backwards."""
        blocks: list[Block] = [self.blocks[turn] for turn in self.block_indices]  # type: ignore[misc]
        sides, states = ResidualStreams.from_hidden(x, self.reversible), list[Tensor]()
        if all_hidden_states is None:
            states.append(sides.apply(ReversiblePass(blocks, layout, memory)).merge())
        else:  # what is looked at between blocks is kept
            for number, block in enumerate(blocks):
                sides = sides.apply(ReversiblePass([block], layout, memory, first_layer=number))
                states.append(sides.merge())
        states[-1] = states[-1] if output_indices is None else states[-1].index_select(0, output_indices)
        if all_hidden_states is not None:
            all_hidden_states.extend(states)
        return (
            self.norm(to_compute_dtype(states[-1]), None)[0] if isinstance(self.norm, AddNorm) else to_compute_dtype(states[-1])
        )

    @property
    def mixers(self) -> list[Mixer]:
        """That of every layer; one that several layers share stands there several times."""
        return [self.blocks[turn].mixer for turn in self.block_indices]  # type: ignore[misc]

    def _add_pending_residual(self, sublayer_out: Tensor | None, residual: Tensor) -> tuple[Tensor | None, Tensor]:
        """The same with nothing left to join: the stream is what left the block."""
        if sublayer_out is None or not isinstance(self.norm, AddNorm):
            return sublayer_out, residual
        return None, residual + F.dropout(sublayer_out, self.norm.dropout, self.training)
