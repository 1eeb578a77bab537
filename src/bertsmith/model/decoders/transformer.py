"""Transformer decoder (Vaswani et al. 2017): causal self-attention, cross-attention to the source, feed-forward."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosInt, Probability, Variant
from ...errors import UserError
from ..batch import Inputs
from ..kv_cache import KVCache, LayerKVCache
from ..linear import Linear
from ..mixers import Attention, LiteTransformer, Longformer
from ..mixers.attention import SelfAttention
from ..mixers.base import LayerState, Mixer, masked_softmax
from ..packing import Layout
from ..sublayers import AddNorm, FeedForwardConfig, to_compute_dtype
from ..transformer import Block, build_blocks
from .base import Decoder

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


CrossKV = tuple[Tensor, Tensor]  # keys and values of the sources, each (rows, heads, source length, head_dim)


class CrossAttention(nn.Module):
    """Cross-attention: queries from the target, keys and values (one fused matrix) from the source; with its AddNorm."""

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        assert isinstance(config.mixer, Attention | LiteTransformer)
        hidden_size, bias = config.hidden_size, config.mixer.bias
        head_multiplier = 2 if isinstance(config.mixer, LiteTransformer) else 1  # its attention has half of the channels
        self.num_heads, self.dropout = head_multiplier * config.mixer.num_attention_heads, config.mixer.attention_dropout
        self.query, self.key_value, self.output = (
            Linear(hidden_size, times * hidden_size, bias=bias, num_parts=times) for times in (1, 2, 1)
        )
        self.norm = config.build_add_norm()

    def forward(self, x: Tensor, layout: Layout, encoder_hidden_states: Tensor, encoder_layout: Layout) -> Tensor:
        """(target tokens, hidden_size): attention of each target token to its source."""
        k, v = self._project_kv(encoder_hidden_states)
        q = self.query(x).unflatten(-1, (self.num_heads, -1))
        dropout = self.dropout if self.training else 0.0
        return self.output(layout.attend(q, k, v, dropout=dropout, keys=encoder_layout).flatten(-2))

    def attention_weights(self, x: Tensor, layout: Layout, encoder_hidden_states: Tensor, encoder_layout: Layout) -> Tensor:
        """(sequences, heads, target length, source length) float32, padded."""
        q = layout.pad(self.query(x).unflatten(-1, (self.num_heads, -1))).transpose(1, 2)
        k = encoder_layout.pad(self._project_kv(encoder_hidden_states)[0]).transpose(1, 2)
        return masked_softmax(q @ k.mT * q.shape[-1] ** -0.5, encoder_layout.padding_mask()[:, None, None])

    def cache_kv(self, encoder_hidden_states: Tensor, encoder_layout: Layout) -> CrossKV:
        """Keys and values of the sources, computed once for all decoding steps."""
        k, v = (encoder_layout.pad(tensor).transpose(1, 2).contiguous() for tensor in self._project_kv(encoder_hidden_states))
        return k, v

    def attend_cached(self, x: Tensor, cross_kv: CrossKV, mask: Tensor | None) -> Tensor:
        """(rows, hidden_size): `forward` for one token of each row, with the keys and values of `cache_kv`."""
        q = self.query(x).unflatten(-1, (self.num_heads, 1, -1))
        return self.output(F.scaled_dot_product_attention(q, *cross_kv, mask).flatten(1))

    def _project_kv(self, encoder_hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.key_value(encoder_hidden_states).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        return k, v


class TransformerDecoderConfig(Variant, frozen=True, tag="transformer"):
    """Transformer decoder (Vaswani et al. 2017); fields that are None are the encoder's."""

    num_hidden_layers: Annotated[PosInt | None, "number of decoder layers; none: as the encoder"] = None
    num_attention_heads: Annotated[PosInt | None, "number of attention heads; none: as the encoder"] = None
    feedforward: Annotated[FeedForwardConfig | None, "position-wise feed-forward sublayer; none: as the encoder"] = None
    norm: Annotated[
        Literal["post", "pre"] | None, "LayerNorm after each sublayer (post) or before it (pre); none: as the encoder"
    ] = None
    hidden_dropout_prob: Annotated[Probability | None, "dropout on the output of each sublayer; none: as the encoder"] = None
    shared: Annotated[bool, "share the encoder's layers, but for cross-attention (BERTShare, Rothe et al. 2020)"] = False

    def build(self, encoder: "EncoderConfig") -> "TransformerDecoder":
        return TransformerDecoder(self, encoder)

    def block_config(self, encoder: "EncoderConfig") -> "EncoderConfig":
        """Config of the decoder's blocks: the encoder's, with this config's fields and a causal mixer."""
        base_mixer = encoder.mixer if isinstance(encoder.mixer, LiteTransformer) else encoder.attention_config()
        mixer = msgspec.structs.replace(
            base_mixer, num_attention_heads=self.num_attention_heads or base_mixer.num_attention_heads, causal=True
        )
        feedforward = self.feedforward or encoder.feedforward or FeedForwardConfig(intermediate_size=4 * encoder.hidden_size)
        norm = self.norm or ("post" if encoder.norm == "none" else encoder.norm)
        dropout = encoder.hidden_dropout_prob if self.hidden_dropout_prob is None else self.hidden_dropout_prob
        fixed_fields = {
            "num_hidden_layers": self.num_hidden_layers or max(1, encoder.num_hidden_layers),
            "num_hidden_groups": None,
            "layer_types": None,
            "layer_sizes": None,
            "residual": "all",
            "first_attention_norm": True,
        }
        return msgspec.structs.replace(
            encoder, mixer=mixer, feedforward=feedforward, norm=norm, hidden_dropout_prob=dropout, **fixed_fields
        )


@dataclass(frozen=True)
class TransformerDecoderState:
    """Decoding state, one row for each target."""

    cache: KVCache  # of the mixer of each block
    cross_kv: list[CrossKV]  # of each block
    source_mask: Tensor | None  # (rows, 1, 1, source length) bool; None if all sources have the same length
    source_id: Tensor  # (rows,): source of each row


class TransformerDecoder(Decoder):
    """Decoder blocks of its own, or the encoder's (`shared`), with a cross-attention in each."""

    def __init__(self, config: TransformerDecoderConfig, encoder: "EncoderConfig") -> None:
        super().__init__()
        self.config, block_config = config, config.block_config(encoder)
        if (
            config.shared
            and (config.num_attention_heads, config.feedforward, config.norm, config.num_hidden_layers) != (None,) * 4
        ):
            raise UserError("decoder.shared=true uses the encoder's layers; leave out the decoder's other settings")
        is_plain_attention = (
            isinstance(encoder.mixer, Attention) and not encoder.layer_types and not encoder.separates_directions
        )
        if config.shared and (not is_plain_attention or encoder.norm == "none" or not encoder.feedforward):
            raise UserError(
                "decoder.shared=true needs an encoder with mixer=attention, feedforward and norm=pre or post; leave it out"
            )
        num_own_blocks = 0 if config.shared else block_config.num_hidden_layers
        self.layers = build_blocks(block_config, num_own_blocks)
        self.cross_attentions = nn.ModuleList(CrossAttention(block_config) for _ in range(block_config.num_hidden_layers))
        self.block_config = block_config
        self.norm_first = block_config.norm == "pre"
        self.final_norm = block_config.build_add_norm() if self.norm_first else nn.Identity()

    def forward(
        self, decoder_inputs: Inputs, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder"
    ) -> Tensor:
        def attend_source(layer: int, x: Tensor) -> Tensor:
            return self.cross_attentions[layer](x, decoder_inputs.layout, encoder_hidden_states, encoder_layout)

        return self._run_layers(decoder_inputs, encoder, attend_source)

    def init_from_encoder(self, encoder: "Encoder") -> str | None:
        """Initialize each block from the encoder's block of the same index (BERT2BERT, Rothe et al. 2020), where they match.

        Returns a description of what keeps its random initialization, or None; cross-attention always does and is not included.
        """
        stack, config = encoder.stack, self.config
        if len(self.layers) > len(stack.group_indices):
            raise UserError(
                f"decoder.num_hidden_layers={len(self.layers)} is more than the {len(stack.group_indices)} layers of "
                "the encoder, from which they are initialized; lower it, or set random_init=true"
            )
        same_feedforward, same_mixer = self._matches_encoder(encoder.config)
        if not same_mixer and (config.num_attention_heads, config.feedforward, config.norm) != (None,) * 3:
            raise UserError(
                "the decoder's layers differ from the encoder's and cannot be initialized from them; leave out "
                "decoder.num_attention_heads, feedforward and norm, or set random_init=true"
            )
        for layer, block in enumerate(self.layers):
            _copy_weights(block, stack.layers[stack.group_indices[layer]], same_feedforward, same_mixer)
        if same_feedforward and isinstance(self.final_norm, AddNorm) and isinstance(stack.final_norm, AddNorm):
            self.final_norm.load_state_dict(stack.final_norm.state_dict())
        return None if same_mixer or not self.layers else "self-attention" if same_feedforward else "every layer"

    def _matches_encoder(self, encoder: "EncoderConfig") -> tuple[bool, bool]:
        """Whether feed-forward and norm match the encoder's; whether self-attention does too, except for the causal mask."""
        if encoder.separates_directions:
            return False, False
        same_feedforward = (self.block_config.feedforward, self.block_config.norm) == (encoder.feedforward, encoder.norm)
        attention = msgspec.structs.replace(encoder.attention_config(), causal=True)
        return same_feedforward, same_feedforward and isinstance(
            encoder.mixer, Attention | Longformer
        ) and self.block_config.mixer == attention

    def init_state(
        self, encoder_hidden_states: Tensor, encoder_layout: Layout, encoder: "Encoder", max_length: int
    ) -> TransformerDecoderState:
        num_rows, device = encoder_layout.num_sequences, encoder_hidden_states.device
        cross_kv = [
            cross_attention.cache_kv(encoder_hidden_states, encoder_layout) for _, cross_attention in self._layers(encoder)
        ]
        source_mask = None if encoder_layout.is_uniform else encoder_layout.padding_mask()[:, None, None]
        cache = KVCache.empty((block.mixer for block, _ in self._layers(encoder)), num_rows, max_length, device)
        return TransformerDecoderState(cache, cross_kv, source_mask, torch.arange(num_rows, device=device))

    def decode_step(
        self, state: TransformerDecoderState, input_ids: Tensor, encoder: "Encoder"
    ) -> tuple[TransformerDecoderState, Tensor]:
        layout = state.cache.next_layout()

        def attend_source(layer: int, x: Tensor) -> Tensor:
            cross_attention: CrossAttention = self.cross_attentions[layer]  # type: ignore[assignment]
            return cross_attention.attend_cached(x, state.cross_kv[layer], state.source_mask)

        hidden_states = self._run_layers(Inputs(input_ids, layout, state=state.cache), encoder, attend_source)
        return replace(state, cache=state.cache.advance(layout)), hidden_states

    @property
    def source_attentions(self) -> list[nn.Module]:
        return list(self.cross_attentions)

    def reorder_state(self, state: TransformerDecoderState, row_indices: Tensor) -> TransformerDecoderState:
        cache, source_id = state.cache.select_rows(row_indices), state.source_id.index_select(0, row_indices)
        if torch.equal(source_id, state.source_id):  # same sources in the same rows, as between the steps of a beam search
            return replace(state, cache=cache)
        source_mask = None if state.source_mask is None else state.source_mask.index_select(0, row_indices)
        cross_kv = [(k.index_select(0, row_indices), v.index_select(0, row_indices)) for k, v in state.cross_kv]
        return TransformerDecoderState(cache, cross_kv, source_mask, source_id)

    def _layers(self, encoder: "Encoder") -> list[tuple[Block, CrossAttention]]:
        stack = encoder.stack
        blocks = [stack.layers[block_index] for block_index in stack.group_indices] if self.config.shared else list(self.layers)
        return list(zip(blocks, self.cross_attentions, strict=True))  # type: ignore[arg-type]

    def _run_layers(self, inputs: Inputs, encoder: "Encoder", attend_source: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Hidden states of the target tokens; `attend_source` is the cross-attention of a layer."""
        residual, sublayer_out = to_compute_dtype(encoder.embed(inputs)), None
        for layer, (block, cross_attention) in enumerate(self._layers(encoder)):
            x, residual = self._mixer_input(block, sublayer_out, residual)
            mixed = _mix_causal(block.mixer, x, inputs.layout, inputs.state.get_layer(layer) if inputs.state else None)
            x, residual = (cross_attention.norm if self.norm_first else block.mixer_norm)(residual, mixed)
            sublayer_out, residual = self._feed_forward(block, cross_attention, residual, attend_source(layer, x))
        return self._final_norm(sublayer_out, residual, inputs.output_indices)

    def _mixer_input(self, block: Block, sublayer_out: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor]:
        if self.norm_first:
            return block.mixer_norm(residual, sublayer_out)
        return (residual if sublayer_out is None else sublayer_out), residual

    def _feed_forward(
        self, block: Block, cross_attention: CrossAttention, residual: Tensor, cross_out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add the cross-attention output, then the feed-forward sublayer."""
        assert block.feedforward is not None and block.feedforward_norm is not None
        x, residual = (block.feedforward_norm if self.norm_first else cross_attention.norm)(residual, cross_out)
        sublayer_out = block.feedforward(x)
        return (sublayer_out, residual) if self.norm_first else block.feedforward_norm(residual, sublayer_out)

    def _final_norm(self, sublayer_out: Tensor | None, residual: Tensor, output_indices: Tensor | None) -> Tensor:
        x = self.final_norm(residual, sublayer_out)[0] if isinstance(self.final_norm, AddNorm) else residual
        return x if output_indices is None else x.index_select(0, output_indices)


def _copy_weights(block: nn.Module, encoder_block: nn.Module, copy_feedforward: bool, copy_mixer: bool) -> None:
    """Copy the mixer and other weights, as requested, where names and shapes are equal in both blocks."""
    own_weights, encoder_weights = block.state_dict(), encoder_block.state_dict()
    copied = {
        name: encoder_weights[name]
        for name, weight in own_weights.items()
        if (copy_mixer if name.startswith("mixer.") else copy_feedforward)
        and name in encoder_weights
        and encoder_weights[name].shape == weight.shape
    }
    block.load_state_dict(own_weights | copied)


def _mix_causal(mixer: Mixer, x: Tensor, layout: Layout, state: LayerState | None) -> Tensor:
    """The mixer with a causal mask, also if the block is shared with a bidirectional encoder."""
    if isinstance(mixer, SelfAttention):
        assert state is None or isinstance(state, LayerKVCache)
        return mixer.attend(x, layout, causal=True, cache=state)
    return mixer(x, layout, state)
