"""Attention from an answer to its source: every token written looks at all that was read."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosInt, Probability, Variant
from ...errors import UserError
from ..batch import Inputs
from ..mixers import Attention, LiteTransformer, Longformer
from ..mixers.attention import LayerCache, SelfAttention
from ..mixers.lite_transformer import LongShortRangeAttention
from ..packing import Layout
from ..sublayers import AddNorm, FeedForwardConfig, to_compute_dtype
from ..transformer import Block
from .base import Decoder, embed_step

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


CrossKV = tuple[Tensor, Tensor]  # keys and values of sources, (rows, heads, longest, width of a head)


class CrossAttention(nn.Module):
    """Queries of the answer, keys and values of the source by one matrix; with the norm behind it, or before it."""

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        assert isinstance(config.mixer, Attention | LiteTransformer)
        width, bias = config.width, config.mixer.bias
        halves = 2 if isinstance(config.mixer, LiteTransformer) else 1  # whose heads are of half the width
        self.num_heads, self.dropout = halves * config.mixer.heads, config.mixer.dropout
        self.q, self.kv, self.out = (nn.Linear(width, times * width, bias=bias) for times in (1, 2, 1))
        self.kv.weight.parts = 2  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.norm = config.build_add_norm()

    def forward(self, x: Tensor, layout: Layout, encoder_hidden_states: Tensor, encoder_layout: Layout) -> Tensor:
        """(tokens of the answers, width): what each finds in the source of its answer."""
        k, v = self._project_kv(encoder_hidden_states)
        q = self.q(x).unflatten(-1, (self.num_heads, -1))
        dropout = self.dropout if self.training else 0.0
        return self.out(layout.attend(q, k, v, dropout=dropout, keys=encoder_layout).flatten(-2))

    def cache_kv(self, encoder_hidden_states: Tensor, encoder_layout: Layout) -> CrossKV:
        """What every step will look at, computed once."""
        k, v = (encoder_layout.pad(part).transpose(1, 2).contiguous() for part in self._project_kv(encoder_hidden_states))
        return k, v

    def decode_step(self, x: Tensor, cross_kv: CrossKV, mask: Tensor | None) -> Tensor:
        """(rows, width): the same for one token a row."""
        q = self.q(x).unflatten(-1, (self.num_heads, 1, -1))
        return self.out(F.scaled_dot_product_attention(q, *cross_kv, mask).flatten(1))

    def _project_kv(self, encoder_hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.kv(encoder_hidden_states).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        return k, v


class TransformerDecoderConfig(Variant, frozen=True, tag="attention"):
    """Vaswani et al. 2017; what is not said is as in the encoder."""

    layers: Annotated[PosInt | None, "blocks, one above another; as many as the encoder has, if none"] = None
    heads: Annotated[PosInt | None, "attention heads; as the encoder, if none"] = None
    feedforward: Annotated[FeedForwardConfig | None, "what each token does by itself; as the encoder, if none"] = None
    norm: Annotated[Literal["after", "before"] | None, "after each part or before it; as the encoder, if none"] = None
    dropout: Annotated[Probability | None, "on what each part adds; as the encoder, if none"] = None
    shared: Annotated[bool, "blocks are the encoder's own, but for attention to the source (BERTShare, Rothe et al. 2020)"] = (
        False
    )

    def build(self, encoder: "EncoderConfig") -> "TransformerDecoder":
        return TransformerDecoder(self, encoder)

    def block_config(self, encoder: "EncoderConfig") -> "EncoderConfig":
        """The blocks of this decoder as an encoder's: what is not said is taken from there."""
        given = encoder.mixer if isinstance(encoder.mixer, LiteTransformer) else encoder.attention_config()
        mixer = msgspec.structs.replace(given, heads=self.heads or given.heads, causal=True)
        fed = self.feedforward or encoder.feedforward or FeedForwardConfig(inner=4 * encoder.width)
        norm = self.norm or ("after" if encoder.norm == "none" else encoder.norm)
        dropout = encoder.dropout if self.dropout is None else self.dropout
        own = {"layers": self.layers or max(1, encoder.layers), "groups": None, "others": None, "residual": "all"}
        return msgspec.structs.replace(encoder, mixer=mixer, feedforward=fed, norm=norm, dropout=dropout, **own)


@dataclass(frozen=True)
class TransformerDecoderState:
    """A row for each answer being written."""

    past_key_values: list[LayerCache]  # of each block, what is written; nothing yet at the first place
    cross_kv: list[CrossKV]  # of each block: keys and values of the source
    source_mask: Tensor | None  # (rows, 1, 1, longest) of the sources; None if all are as long
    source_id: Tensor  # (rows,): the text each row answers
    position: int


class TransformerDecoder(Decoder):
    def __init__(self, config: TransformerDecoderConfig, encoder: "EncoderConfig") -> None:
        super().__init__()
        self.config, own = config, config.block_config(encoder)
        if config.shared and (config.heads, config.feedforward, config.norm, config.layers) != (None,) * 4:
            raise UserError("decoder.shared=true takes the encoder's blocks as they are; leave out the decoder's own settings")
        plain = isinstance(encoder.mixer, Attention) and not encoder.others
        if config.shared and (not plain or encoder.norm == "none" or not encoder.feedforward):
            raise UserError("decoder.shared=true shares blocks of dense attention with norms, and this encoder has others")
        count = 0 if config.shared else own.layers
        self.blocks = nn.ModuleList(Block(own.for_layer(number, count)) for number in range(count))
        for block in self.blocks[1:]:
            block.mixer.tie_weights(self.blocks[0].mixer)  # type: ignore[union-attr, operator]
        self.crossings = nn.ModuleList(CrossAttention(own) for _ in range(own.layers))
        self.block_config = own
        self.norm_first = own.norm == "before"
        self.norm = own.build_add_norm() if self.norm_first else nn.Identity()

    def forward(
        self, decoder_inputs: Inputs, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder"
    ) -> Tensor:
        stream, said = to_compute_dtype(encoder.embed(decoder_inputs)), None
        for block, crossing in self._layers(encoder):
            said, stream = self._forward_block(
                block, crossing, said, stream, decoder_inputs.layout, encoder_hidden_states, encoder_layout
            )
        return self._final_norm(said, stream, decoder_inputs.output_indices)

    def init_from_encoder(self, encoder: "Encoder") -> str | None:
        """Each block begins as the encoder's of its number (BERT2BERT), as far as both are of one kind; what is new is told.
        Attention to the source always is."""
        stack, said = encoder.stack, self.config
        if len(self.blocks) > len(stack.block_indices):
            raise UserError(f"decoder.layers={len(self.blocks)} is more than the {len(stack.block_indices)} blocks of the encoder, "
                           "which they begin as; lower it, or begin anew with scratch=true")  # fmt: skip
        fed, mixed = self._matches_encoder(encoder.config)
        if not mixed and (said.heads, said.feedforward, said.norm) != (None,) * 3:
            raise UserError("the decoder's blocks are not of the encoder's kind, and cannot begin as those; leave out "
                           "decoder.heads, feedforward and norm, or begin anew with scratch=true")  # fmt: skip
        for number, block in enumerate(self.blocks):
            _copy_weights(block, stack.blocks[stack.block_indices[number]], fed, mixed)
        if fed and isinstance(self.norm, AddNorm) and isinstance(stack.norm, AddNorm):
            self.norm.load_state_dict(stack.norm.state_dict())
        return None if mixed or not self.blocks else "what its tokens see of each other" if fed else "all of it"

    def _matches_encoder(self, encoder: "EncoderConfig") -> tuple[bool, bool]:
        """Whether norms and feed-forwards are as the encoder's, and attention too, but for what it may not see."""
        fed = (self.block_config.feedforward, self.block_config.norm) == (encoder.feedforward, encoder.norm)
        attention = msgspec.structs.replace(encoder.attention_config(), causal=True)
        return fed, fed and isinstance(encoder.mixer, Attention | Longformer) and self.block_config.mixer == attention

    def init_state(self, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder") -> TransformerDecoderState:
        heads = [crossing.cache_kv(encoder_hidden_states, encoder_layout) for _, crossing in self._layers(encoder)]
        real = None if encoder_layout.is_uniform else encoder_layout.padding_mask()[:, None, None]
        return TransformerDecoderState(
            [], heads, real, torch.arange(encoder_layout.num_sequences, device=encoder_hidden_states.device), 0
        )

    def decode_step(
        self, state: TransformerDecoderState, input_ids: Tensor, encoder: "Encoder"
    ) -> tuple[TransformerDecoderState, Tensor]:
        stream, said = to_compute_dtype(embed_step(encoder, input_ids, state.position)), None
        past: list[LayerCache] = []
        for number, (block, crossing) in enumerate(self._layers(encoder)):
            x, stream = self._mixer_input(block, said, stream)
            assert isinstance(block.mixer, SelfAttention | LongShortRangeAttention)
            mixed, kept = block.mixer.decode_step(
                x, state.past_key_values[number] if state.past_key_values else None, state.position
            )
            past.append(kept)
            x, stream = (crossing.norm if self.norm_first else block.mixer_norm)(stream, mixed)
            said, stream = self._feed_forward(
                block, crossing, stream, crossing.decode_step(x, state.cross_kv[number], state.source_mask)
            )
        return replace(state, past_key_values=past, position=state.position + 1), self._final_norm(said, stream, None)

    def reorder_state(self, state: TransformerDecoderState, row_indices: Tensor) -> TransformerDecoderState:
        past = [tuple(part.index_select(0, row_indices) for part in kept) for kept in state.past_key_values]
        owner = state.source_id.index_select(0, row_indices)
        if torch.equal(owner, state.source_id):  # the same texts in the same places, as from step to step of a beam
            return replace(state, past_key_values=past)
        real = None if state.source_mask is None else state.source_mask.index_select(0, row_indices)
        seen = [(k.index_select(0, row_indices), v.index_select(0, row_indices)) for k, v in state.cross_kv]
        return TransformerDecoderState(past, seen, real, owner, state.position)

    def _layers(self, encoder: "Encoder") -> list[tuple[Block, CrossAttention]]:
        stack = encoder.stack
        blocks = [stack.blocks[turn] for turn in stack.block_indices] if self.config.shared else list(self.blocks)
        return list(zip(blocks, self.crossings, strict=True))  # type: ignore[arg-type]

    def _forward_block(
        self, block: Block, cross_attention: CrossAttention, sublayer_out: Tensor | None, residual: Tensor, layout: Layout, encoder_hidden_states: Tensor,
        encoder_layout: Layout,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, residual = self._mixer_input(block, sublayer_out, residual)
        mixed = _mix_causal(block.mixer, x, layout)
        x, residual = (cross_attention.norm if self.norm_first else block.mixer_norm)(residual, mixed)
        return self._feed_forward(
            block, cross_attention, residual, cross_attention(x, layout, encoder_hidden_states, encoder_layout)
        )

    def _mixer_input(self, block: Block, sublayer_out: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor]:
        if self.norm_first:
            return block.mixer_norm(residual, sublayer_out)
        return (residual if sublayer_out is None else sublayer_out), residual

    def _feed_forward(
        self, block: Block, cross_attention: CrossAttention, residual: Tensor, cross_out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What was seen in the source joins, and each token thinks by itself."""
        assert block.feedforward is not None and block.feedforward_norm is not None
        x, residual = (block.feedforward_norm if self.norm_first else cross_attention.norm)(residual, cross_out)
        said = block.feedforward(x)
        return (said, residual) if self.norm_first else block.feedforward_norm(residual, said)

    def _final_norm(self, sublayer_out: Tensor | None, residual: Tensor, output_indices: Tensor | None) -> Tensor:
        x = self.norm(residual, sublayer_out)[0] if isinstance(self.norm, AddNorm) else residual
        return x if output_indices is None else x.index_select(0, output_indices)


def _copy_weights(block: nn.Module, encoder_block: nn.Module, copy_feedforward: bool, copy_mixer: bool) -> None:
    """Takes over the weights that mean the same in both."""
    wanted, given = block.state_dict(), encoder_block.state_dict()
    taken = {
        name: given[name] for name, weight in wanted.items()
        if (copy_mixer if name.startswith("mixer.") else copy_feedforward) and name in given and given[name].shape == weight.shape
    }  # fmt: skip
    block.load_state_dict(wanted | taken)


def _mix_causal(mixer: nn.Module, x: Tensor, layout: Layout) -> Tensor:
    """A block's own mixing, that sees only what came before, whether it is the decoder's or shared with the encoder."""
    return mixer.attend(x, layout, causal=True) if isinstance(mixer, SelfAttention) else mixer(x, layout)
