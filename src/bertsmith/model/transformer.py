"""Transformer blocks (mixer, feed-forward, residual and LayerNorm), and the stack of them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import UserError
from .kv_cache import KVCache
from .mixers import Attention, Mixer
from .mixers.base import LayerState, MemoryMixer
from .mixers.reformer.reversible import ResidualStreams, ReversiblePass, reversible_block_config
from .mixers.separate_directions import SeparateAddNorm
from .packing import Layout
from .segment_memory import SegmentMemory
from .sublayers import AddNorm, to_compute_dtype

if TYPE_CHECKING:
    from .config import EncoderConfig


class Block(nn.Module):
    """Mixer and feed-forward, each with a residual connection.

    Takes and returns (sublayer_out, residual). Post-norm: both are the normed hidden states. Pre-norm: sublayer_out has
    not been added yet; the next AddNorm adds it to the residual and normalizes in one kernel.
    """

    def __init__(self, config: "EncoderConfig", is_first: bool = False) -> None:
        super().__init__()
        self.mixer: Mixer = config.mixer.build(config.hidden_size)
        self.feedforward = config.build_feedforward()
        self.mixer_norm = config.build_mixer_residual(is_first)
        self.feedforward_norm = config.build_residual(is_first) if config.feedforward else None
        self.norm_first = config.norm == "pre"

    def forward(
        self,
        sublayer_out: Tensor | None,
        residual: Tensor,
        layout: Layout,
        output_indices: Tensor | None = None,
        state: LayerState | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(sublayer_out, residual, mixer input). After the mixer only the rows of `output_indices` are computed, if given."""
        x = residual if sublayer_out is None else sublayer_out
        if self.norm_first:
            x, residual = self.mixer_norm(residual, sublayer_out)
        mixer_input, mixed = x, self.mixer(x, layout, state)
        if output_indices is not None:
            residual, mixed = residual.index_select(0, output_indices), mixed.index_select(0, output_indices)
        if self.feedforward is None or self.feedforward_norm is None:
            return (mixed, residual, mixer_input) if self.norm_first else (*self.mixer_norm(residual, mixed), mixer_input)
        x, residual = (self.feedforward_norm if self.norm_first else self.mixer_norm)(residual, mixed)
        sublayer_out = self.feedforward(x)
        return (
            (sublayer_out, residual, mixer_input)
            if self.norm_first
            else (*self.feedforward_norm(residual, sublayer_out), mixer_input)
        )


def build_blocks(config: "EncoderConfig", num_blocks: int) -> nn.ModuleList:
    """The blocks of a stack, each of its layer's config, with tied weights where a mixer's config ties them."""
    configs = [config.for_layer(number, num_blocks) for number in range(num_blocks)]
    blocks = [Block(block_config, is_first=number == 0) for number, block_config in enumerate(configs)]
    for block_config, block in zip(configs[1:], blocks[1:], strict=True):
        block_config.mixer.tie_weights(block.mixer, blocks[0].mixer)
    return nn.ModuleList(blocks)


class Stack(nn.Module):
    """Blocks of an encoder (ALBERT: layers share `num_hidden_groups` blocks), and the final LayerNorm of pre-norm."""

    gradient_checkpointing = False  # recompute activations in the backward pass: less memory, a third more work

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        num_groups = config.num_hidden_groups or config.num_hidden_layers
        if num_groups > config.num_hidden_layers:
            raise UserError(
                f"{num_groups} different blocks for {config.num_hidden_layers} layers; lower model.num_hidden_groups"
            )
        if config.residual != "all" and config.norm != "none":
            raise UserError(
                f"model.residual={config.residual} needs a model without norms; set model.norm=none, or leave it out"
            )
        if not config.first_attention_norm and (
            config.norm != "pre" or not config.embedding_norm or config.reversible or num_groups < config.num_hidden_layers
        ):
            raise UserError(
                "model.first_attention_norm=false needs model.norm=pre and the LayerNorm of model.embedding_norm=true in its "
                "place, and is not supported with model.reversible or model.num_hidden_groups"
            )
        if config.layer_sizes:
            config.layer_sizes.check(num_groups)
        _check_directions(config)
        self.reversible, block_config = config.reversible, reversible_block_config(config)
        self.layers = build_blocks(block_config, num_groups)
        self.group_indices = [
            int(layer / (config.num_hidden_layers / num_groups)) for layer in range(config.num_hidden_layers)
        ]  # as ALBERT rounds
        self.final_norm = config.build_block_norm() if config.norm == "pre" else nn.Identity()

    def forward(
        self, x: Tensor, layout: Layout, all_hidden_states: list[Tensor] | None = None, output_indices: Tensor | None = None,
        state: SegmentMemory | KVCache | None = None,
    ) -> Tensor:  # fmt: skip
        """Output of the last block, (tokens, hidden_size) or the rows of `output_indices`.

        The output of every block is appended to `all_hidden_states` if it is given. Each layer gets its part of `state`.
        """
        if self.reversible and self.group_indices:
            return self._forward_reversible(x, layout, all_hidden_states, output_indices, state)
        recompute = self.gradient_checkpointing and self.training
        residual = (
            to_compute_dtype(x)
            if self.group_indices or output_indices is None
            else to_compute_dtype(x).index_select(0, output_indices)
        )
        sublayer_out: Tensor | None = None
        for layer, block_index in enumerate(self.group_indices, start=1):
            block, row_indices = self.layers[block_index], output_indices if layer == len(self.group_indices) else None
            layer_state = state.get_layer(layer - 1) if state else None
            block_args = (sublayer_out, residual, layout, row_indices, layer_state)
            sublayer_out, residual, mixer_input = (
                checkpoint(block, *block_args, use_reentrant=False) if recompute else block(*block_args)
            )
            if isinstance(state, SegmentMemory):
                state.set_next_layer(layer - 1, mixer_input, layout, self.memory_mixers[layer - 1])
            del mixer_input  # free it before the next block runs
            if all_hidden_states is not None:
                sublayer_out, residual = self._add_pending_residual(sublayer_out, residual)
                all_hidden_states.append(residual)
        return (
            self.final_norm(residual, sublayer_out)[0] if isinstance(self.final_norm, AddNorm | SeparateAddNorm) else residual
        )

    def block(self, layer: int) -> Block:
        """The block of a layer, counted from 0; layers may share one."""
        return self.layers[self.group_indices[layer]]  # type: ignore[return-value]

    def forward_blocks(self, blocks: Iterable[Block], x: Tensor, layout: Layout) -> Tensor:
        """Output of these blocks in place of the stack's own, such as blocks of another model, and of the final norm."""
        sublayer_out: Tensor | None = None
        residual = to_compute_dtype(x)
        for block in blocks:
            sublayer_out, residual, _ = block(sublayer_out, residual, layout)
        return (
            self.final_norm(residual, sublayer_out)[0] if isinstance(self.final_norm, AddNorm | SeparateAddNorm) else residual
        )

    def _forward_reversible(
        self,
        x: Tensor,
        layout: Layout,
        all_hidden_states: list[Tensor] | None,
        output_indices: Tensor | None,
        state: SegmentMemory | KVCache | None,
    ) -> Tensor:
        """`forward` with reversible blocks (Gomez et al. 2017, Kitaev et al. 2020)."""
        blocks: list[Block] = [self.layers[block_index] for block_index in self.group_indices]  # type: ignore[misc]
        streams, states = ResidualStreams.from_hidden(x, self.reversible), list[Tensor]()
        if all_hidden_states is None:
            states.append(streams.apply(ReversiblePass(blocks, range(len(blocks)), layout, state)).merge())
        else:  # hidden states between blocks are requested: one reversible pass for each block
            for layer in range(len(blocks)):
                streams = streams.apply(ReversiblePass(blocks, range(layer, layer + 1), layout, state))
                states.append(streams.merge())
        states[-1] = states[-1] if output_indices is None else states[-1].index_select(0, output_indices)
        if all_hidden_states is not None:
            all_hidden_states.extend(states)
        return (
            self.final_norm(to_compute_dtype(states[-1]), None)[0]
            if isinstance(self.final_norm, AddNorm)
            else to_compute_dtype(states[-1])
        )

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of every layer; one that layers share is listed several times."""
        return [self.layers[block_index].mixer for block_index in self.group_indices]  # type: ignore[misc]

    @property
    def memory_mixers(self) -> list[MemoryMixer | None]:
        """The mixer of every layer, None for those that attend to no segment memory."""
        return [mixer if isinstance(mixer, MemoryMixer) else None for mixer in self.mixers]

    @property
    def mem_lens(self) -> list[int]:
        """Past positions that each layer keeps for the next segments."""
        return [mixer.mem_len if mixer else 0 for mixer in self.memory_mixers]

    def _add_pending_residual(self, sublayer_out: Tensor | None, residual: Tensor) -> tuple[Tensor | None, Tensor]:
        """Pre-norm: add the pending sublayer_out, so that the residual is the block's output."""
        if sublayer_out is None or not isinstance(self.final_norm, AddNorm | SeparateAddNorm):
            return sublayer_out, residual
        return None, residual + F.dropout(sublayer_out, self.final_norm.dropout, self.training)


def _check_directions(config: "EncoderConfig") -> None:
    """Raises a UserError where only a part of the stack, or two streams of it, would keep its directions apart."""
    mixers = [config.mixer, *([config.layer_types.mixer] if config.layer_types else [])]
    if any(isinstance(mixer, Attention) and mixer.directions == "apart" for mixer in mixers) and (
        config.layer_types or config.reversible
    ):
        raise UserError(
            "model.mixer.directions=apart needs layers that are alike and not reversible; leave out model.layer_types and "
            "model.reversible"
        )
