"""Longformer's mixer: config, projections, and the global tokens' own attention over their whole sequence."""

from typing import Annotated

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ....config import NonNegInt, PosFloat, PosInt, Probability
from ....errors import UserError
from ...linear import Linear
from ...packing import FLASH_DTYPES, Layout
from ...positions import RotaryEmbedding, apply_rope, shift_rope
from ..base import BaseMixerConfig, LayerState, Mixer, QKVProjection, masked_softmax
from .attention import longformer_attention
from .clamped_rope import clamped_scores, qk_scores
from .global_attention import MAX_GLOBAL_PER_GROUP, AttentionPattern, GlobalGroup, build_global_groups
from .global_queries import fused_qkv_and_global


class Longformer(BaseMixerConfig, frozen=True, tag="longformer"):
    """Longformer (Beltagy et al. 2020): sliding-window attention, optionally dilated for some heads, with global tokens."""

    num_attention_heads: Annotated[PosInt, "number of attention heads"] = 12
    attention_window: Annotated[
        tuple[PosInt, ...],
        Meta(min_length=1),
        "window size in tokens, both sides together (512 in the paper); one, or one per layer",
    ] = (512,)
    dilation: Annotated[
        tuple[PosInt, ...], "dilation of the last heads: with [2, 2], two heads attend to every second token, twice as far"
    ] = ()
    dilated_layers: Annotated[NonNegInt | None, "number of top layers with dilated heads; none: all"] = None
    global_attention: Annotated[bool, "global attention for the tokens that the task selects, else [CLS]"] = True
    causal: Annotated[bool, "attend only to earlier tokens (left to right)"] = False
    attention_dropout: Annotated[Probability, "dropout on attention weights; above 0, attention is slower"] = 0.0
    bias: Annotated[bool, "bias terms in the linear layers"] = True
    rope_theta: Annotated[PosFloat | None, "base of RoPE, such as 10000; with model.position_embedding_type=none"] = None

    def for_layer(self, layer: int, num_layers: int) -> "Longformer":
        """The config of one layer, with its window and dilation."""
        if len(self.attention_window) not in (1, num_layers):
            raise UserError(
                f"model.mixer.attention_window has {len(self.attention_window)} numbers for {num_layers} layers; "
                "give one number, or one per layer"
            )
        if self.dilated_layers is not None and not self.dilation:
            raise UserError(
                f"dilated_layers={self.dilated_layers} has no effect without dilation; set it, such as dilation=[2, 2], "
                "or leave out dilated_layers"
            )
        dilation = self.dilation if self.dilated_layers is None or layer >= num_layers - self.dilated_layers else ()
        window = self.attention_window[layer if len(self.attention_window) > 1 else 0]
        if window % 2:
            raise UserError(f"model.mixer.attention_window={window} counts both sides together; give an even number")
        return msgspec.structs.replace(self, attention_window=(window,), dilation=dilation, dilated_layers=None)

    def build(self, hidden_size: int) -> Mixer:
        return LongformerAttention(self.for_layer(0, 1), hidden_size)


class LongformerAttention(Mixer):
    """Window and global attention of one layer; heads of equal dilation are computed together."""

    def __init__(self, config: Longformer, hidden_size: int) -> None:
        super().__init__()
        if len(config.dilation) > config.num_attention_heads:
            raise UserError(
                f"model.mixer.dilation has {len(config.dilation)} numbers for {config.num_attention_heads} heads; give at "
                "most one per head"
            )
        self.causal, self.dropout, self.half_window = config.causal, config.attention_dropout, config.attention_window[0] // 2
        self.projections = QKVProjection(hidden_size, config.num_attention_heads, config.bias)
        # Global tokens have projections of their own (section 3.1).
        self.global_qkv = (
            Linear(hidden_size, 3 * hidden_size, bias=config.bias, num_parts=3) if config.global_attention else None
        )
        self.rotary = (
            RotaryEmbedding(hidden_size // config.num_attention_heads, config.rope_theta) if config.rope_theta else None
        )
        dilations = [1] * (config.num_attention_heads - len(config.dilation)) + list(config.dilation)
        self.heads_by_dilation = {
            dilation: [head for head, head_dilation in enumerate(dilations) if head_dilation == dilation]
            for dilation in sorted(set(dilations))
        }

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        if layout.prefix_lengths is not None:
            raise UserError(
                "mixer=longformer does not support prefix LM attention (bidirectional prefixes, UniLM); use mixer=attention"
            )
        qkv, global_out, qkv_bias = self._project(x, layout)
        return self.projections.output(self._attend(self._apply_rope(qkv, layout), global_out, qkv_bias, layout))

    def attention_weights(self, x: Tensor, layout: Layout) -> Tensor:
        """Of the window and the global tokens; rows of global tokens with their own projections."""
        position, padding_mask = torch.arange(layout.max_seqlen, device=x.device), layout.padding_mask()
        distance = position[:, None] - position
        is_global = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        if self.global_qkv is not None:
            is_global[layout.global_tokens] = True
        is_global = layout.pad(is_global)[:, None]  # (sequences, 1, max_seqlen)
        visible = padding_mask[:, None, None] & (distance >= 0) if self.causal else padding_mask[:, None, None]
        weights = x.new_zeros(len(padding_mask), self.projections.num_heads, len(position), len(position), dtype=torch.float32)
        for dilation, heads in self.heads_by_dilation.items():
            max_distance = self.half_window * dilation
            in_window = (distance.abs() <= max_distance) & (distance % dilation == 0)
            scores = self._dense_scores(self.projections.qkv, x, layout, in_window, max_distance)
            weights[:, heads] = masked_softmax(scores[:, heads], visible & (in_window | is_global[:, :, None]))
        if self.global_qkv is None:
            return weights
        in_window = distance.abs() <= self.half_window
        scores = self._dense_scores(self.global_qkv, x, layout, in_window, self.half_window)
        return torch.where(is_global[..., None], masked_softmax(scores, visible), weights)

    def _dense_scores(self, qkv: nn.Module, x: Tensor, layout: Layout, in_window: Tensor, max_distance: int) -> Tensor:
        """(sequences, heads, max_seqlen, max_seqlen): scores; RoPE with distances clamped outside `in_window`."""
        q, k = (layout.pad(t) for t in qkv(x).unflatten(-1, (3, self.projections.num_heads, -1)).unbind(-3)[:2])
        cos_sin = self._cos_sin(layout, x.device)
        if cos_sin is None:
            return qk_scores(q, k)
        position = torch.arange(layout.max_seqlen, device=x.device).expand(len(q), -1)
        rotated = qk_scores(shift_rope(q, cos_sin, position), shift_rope(k, cos_sin, position))
        behind, ahead = (
            qk_scores(shift_rope(q, cos_sin, torch.full_like(position, offset)), k) for offset in (max_distance, -max_distance)
        )
        is_behind = position[:, None, :, None] > position[:, None, None]
        return torch.where(in_window, rotated, torch.where(is_behind, behind, ahead))

    def _attend(self, qkv: Tensor, global_out: Tensor | None, qkv_bias: Tensor | None, layout: Layout) -> Tensor:
        """(tokens, hidden_size): attention to the window and to global tokens; `global_out` fills the rows of the latter."""
        num_heads, dropout = self.projections.num_heads, self.dropout if self.training else 0.0
        if list(self.heads_by_dilation) == [1] and layout.is_at_most(self.half_window + 1):  # all fit into the window
            out = layout.attend_qkv(qkv, num_heads, None, self.causal, dropout)
            return out if global_out is None else out.index_copy(0, layout.global_tokens, global_out.to(out.dtype))
        qkv, global_heads = (
            qkv.unflatten(-1, (3, num_heads, -1)),
            None if global_out is None else global_out.unflatten(-1, (num_heads, -1)),
        )
        cos_sin = None if global_out is None else self._cos_sin(layout, qkv.device)
        patterns = [
            AttentionPattern(self.half_window, dilation, self.causal, global_out is not None)
            for dilation in self.heads_by_dilation
        ]
        if len(patterns) == 1:
            bias = None if qkv_bias is None else qkv_bias.unflatten(-1, (3, num_heads, -1))
            return longformer_attention(qkv, global_heads, bias, layout, patterns[0], dropout, cos_sin).flatten(-2)
        outs = [  # no qkv_bias: the gradient of some heads would be only a part of its own
            longformer_attention(
                qkv[..., heads, :],
                None if global_heads is None else global_heads[:, heads],
                None,
                layout,
                pattern,
                dropout,
                cos_sin,
            )
            for pattern, heads in zip(patterns, self.heads_by_dilation.values(), strict=True)
        ]
        order = torch.tensor([head for heads in self.heads_by_dilation.values() for head in heads], device=qkv.device).argsort()
        return torch.cat(outs, 1).index_select(1, order).flatten(-2)

    def _project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """qkv (tokens, 3 * hidden_size), the global tokens' attention output and a bias (see global_queries.py), or None."""
        qkv, global_qkv = self.projections.qkv, self.global_qkv
        if global_qkv is None:
            return qkv(x), None, None
        can_fuse = torch.is_grad_enabled() and not torch.compiler.is_compiling() and not (self.dropout and self.training)
        groups, use_folded = self._global_groups(x, layout)
        if use_folded and groups and can_fuse and isinstance(qkv, nn.Linear):
            return fused_qkv_and_global(x, qkv, global_qkv, groups, layout, self.projections.num_heads)
        return qkv(x), self._global_attention(x, layout), None

    def _global_groups(self, x: Tensor, layout: Layout) -> tuple[list[GlobalGroup], bool]:
        """Groups of global tokens, and whether these are so few that folding the key and value projections is cheaper."""
        use_folded = isinstance(self.global_qkv, nn.Linear) and self.rotary is None  # no RoPE, no LoRA
        # With more global tokens than half the head_dim, computing keys and values is cheaper.
        max_global = max(1, x.shape[1] // self.projections.num_heads // 2) if use_folded else MAX_GLOBAL_PER_GROUP
        groups: list[GlobalGroup] = layout.memoize(
            ("global_groups", max_global, self.causal), lambda: build_global_groups(layout, max_global, self.causal)
        )
        return groups, use_folded and (
            torch.compiler.is_compiling() or all(group.masked_out.shape[-2] <= max_global for group in groups)
        )

    def _global_attention(self, x: Tensor, layout: Layout) -> Tensor:
        """(global tokens, hidden_size): the global tokens over all tokens of their sequences."""
        groups, use_folded = self._global_groups(x, layout)
        if use_folded:
            global_rows = x[layout.global_tokens]
            outs = [
                self._folded_global_attention(
                    group.select_global(global_rows), group.select_tokens(x, layout), group.masked_out
                )
                for group in groups
            ]
        else:
            global_rows, k, v = self._global_qkv(x, layout)
            outs = [
                self._weighted_values(
                    self._global_scores(group, global_rows, k, layout), group.select_tokens(v, layout), group.masked_out
                )
                for group in groups
            ]
        return torch.cat([out.flatten(0, -2) for out in outs]) if outs else x[:0]

    def _global_qkv(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """q of the global tokens, (global tokens, hidden_size); k and v of all, (tokens, hidden_size); not rotated yet."""
        if not isinstance(self.global_qkv, nn.Linear):
            assert self.global_qkv is not None
            q, k, v = self.global_qkv(x).chunk(3, -1)
            return q[layout.global_tokens], k, v
        (q_weight, kv_weight), bias, hidden_size = (
            self.global_qkv.weight.tensor_split([x.shape[1]]),
            self.global_qkv.bias,
            x.shape[1],
        )
        q_bias, kv_bias = (None, None) if bias is None else (bias[:hidden_size], bias[hidden_size:])
        k, v = F.linear(x, kv_weight, kv_bias).chunk(2, -1)
        return F.linear(x[layout.global_tokens], q_weight, q_bias), k, v

    def _global_scores(self, group: GlobalGroup, global_queries: Tensor, k: Tensor, layout: Layout) -> Tensor:
        """(.., heads, global tokens, tokens), of (global tokens, hidden_size) and (tokens, hidden_size)."""
        q, k = (
            t.unflatten(-1, (self.projections.num_heads, -1))
            for t in (group.select_global(global_queries), group.select_tokens(k, layout))
        )
        cos_sin = self._cos_sin(layout, q.device)
        if cos_sin is None:
            return qk_scores(q, k)
        query_position, key_position = (
            group.select_global(layout.position[layout.global_tokens]),
            group.select_tokens(layout.position, layout),
        )
        return clamped_scores(q, k, cos_sin, query_position, key_position, self.half_window)

    def _weighted_values(self, scores: Tensor, v: Tensor, masked_out: Tensor) -> Tensor:
        """softmax(scores) v: scores (.., heads, global tokens, tokens), v (.., tokens, hidden_size)."""
        v = v.unflatten(-1, (self.projections.num_heads, -1)).transpose(-3, -2)
        return (self._attention_probs(scores, masked_out[..., None, :, :]).to(v.dtype) @ v).transpose(-3, -2).flatten(-2)

    def _folded_global_attention(self, global_hidden: Tensor, x: Tensor, masked_out: Tensor) -> Tensor:
        """(.., global tokens, hidden_size): the same with folded projections (see global_queries.py), by plain autograd.

        For few global tokens cheaper than the keys and values of every token.
        """
        assert self.global_qkv is not None
        num_heads, bias = self.projections.num_heads, self.global_qkv.bias
        (wq, wk, wv), (bq, _, bv) = self.global_qkv.weight.chunk(3), [None] * 3 if bias is None else bias.chunk(3)
        wk, wv = (weight.unflatten(0, (num_heads, -1)).to(x.dtype) for weight in (wk, wv))
        q = F.linear(global_hidden, wq, bq).unflatten(-1, (num_heads, -1)) * (x.shape[-1] // num_heads) ** -0.5
        folded_queries = torch.einsum("...ahd,hdw->...ahw", q, wk)
        # (.., global tokens, heads, tokens)
        scores = (folded_queries.flatten(-3, -2) @ x.mT).unflatten(-2, folded_queries.shape[-3:-1])
        probs = self._attention_probs(scores, masked_out[..., None, :]).to(x.dtype)
        mean_hidden = (probs.flatten(-3, -2) @ x).unflatten(-2, folded_queries.shape[-3:-1])
        out = torch.einsum("...ahw,hdw->...ahd", mean_hidden, wv).flatten(-2)
        return out if bv is None else out + bv

    def _attention_probs(self, scores: Tensor, masked_out: Tensor) -> Tensor:
        """Softmax over the tokens that are not masked out, then dropout in training."""
        probs = scores.masked_fill(masked_out, float("-inf")).softmax(
            -1, torch.float32 if scores.dtype in FLASH_DTYPES else None
        )
        return F.dropout(probs, self.dropout, self.training)

    def _apply_rope(self, qkv: Tensor, layout: Layout) -> Tensor:
        cos_sin = self._cos_sin(layout, qkv.device)
        return qkv if cos_sin is None else apply_rope(qkv, cos_sin, layout.position, self.projections.num_heads)

    def _cos_sin(self, layout: Layout, device: torch.device) -> Tensor | None:
        """The RoPE table, for all positions and window edges; None without RoPE."""
        return (
            None
            if self.rotary is None
            else self.rotary.cos_sin(layout.max_seqlen + self.half_window * max(self.heads_by_dilation), device)
        )
