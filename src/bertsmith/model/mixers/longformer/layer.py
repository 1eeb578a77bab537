"""Longformer: a window around each token, and a few anchors that see, and are seen by, their whole sequence."""

from typing import Annotated

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ....config import NonNegInt, PosFloat, PosInt, Probability, Variant
from ....errors import UserError
from ...packing import FLASH_DTYPES, Layout
from ...positions import RotaryEmbedding, apply_rope
from ..base import Mixer, QKVProjection
from .attention import longformer_attention
from .clamped_rope import clamped_scores, qk_scores
from .global_attention import MAX_GLOBAL_PER_GROUP, AttentionPattern, GlobalGroup, build_global_groups
from .global_queries import fused_qkv_and_global


class Longformer(Variant, frozen=True, tag="window"):
    heads: Annotated[PosInt, "attention heads"] = 12
    reach: Annotated[
        tuple[PosInt, ...], Meta(min_length=1), "tokens seen on each side: half of the paper's window; or one for each layer"
    ] = (256,)
    dilation: Annotated[
        tuple[PosInt, ...], "of the last heads, such as [2, 2]: each sees every second token, twice as far"
    ] = ()
    dilated: Annotated[NonNegInt | None, "layers from the top whose heads are dilated; all, if none"] = None
    anchors: Annotated[bool, "tokens that meet their whole sequence: those a task chooses, or [CLS]"] = True
    causal: Annotated[bool, "see only what came before"] = False
    dropout: Annotated[Probability, "on attention weights; above 0 takes a slower path"] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = True
    rotary: Annotated[PosFloat | None, "longest period of rotary positions, such as 10000; with model.table=false"] = None

    def for_layer(self, layer_idx: int, num_layers: int) -> "Longformer":
        """That of one layer."""
        if len(self.reach) not in (1, num_layers):
            raise UserError(f"model.mixer.reach has {len(self.reach)} numbers for {num_layers} layers; give one, or one each")
        if self.dilated is not None and not self.dilation:
            raise UserError(f"dilated={self.dilated} says which layers have dilated heads, of which there are none; name some, "
                           "such as dilation=[2, 2], or leave it out")  # fmt: skip
        dilation = self.dilation if self.dilated is None or layer_idx >= num_layers - self.dilated else ()
        reach = self.reach[layer_idx if len(self.reach) > 1 else 0]
        return msgspec.structs.replace(self, reach=(reach,), dilation=dilation, dilated=None)

    def build(self, hidden_size: int) -> Mixer:
        return LongformerAttention(self.for_layer(0, 1), hidden_size)


class LongformerAttention(Mixer):
    def __init__(self, config: Longformer, hidden_size: int) -> None:
        super().__init__()
        if len(config.dilation) > config.heads:
            raise UserError(f"model.mixer.dilation has {len(config.dilation)} numbers for {config.heads} heads; shorten it")
        self.causal, self.dropout, (self.half_window,) = config.causal, config.dropout, config.reach
        self.project = QKVProjection(hidden_size, config.heads, config.bias)
        self.anchored = (
            nn.Linear(hidden_size, 3 * hidden_size, bias=config.bias) if config.anchors else None
        )  # section 3.1: its own
        if self.anchored is not None:
            self.anchored.weight.parts = 3  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.rotary = RotaryEmbedding(hidden_size // config.heads, config.rotary) if config.rotary else None
        steps = [1] * (config.heads - len(config.dilation)) + list(config.dilation)
        self.heads_by_dilation = {step: [n for n, one in enumerate(steps) if one == step] for step in sorted(set(steps))}

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.prefix_lengths is not None:
            raise UserError("a window does not know of prefixes that see each other (UniLM); train a model with mixer=dense")
        qkv, rows, shift = self._project(x, layout)
        return self.project.out(self._attend(self._apply_rope(qkv, layout), rows, shift, layout))

    def _attend(self, qkv: Tensor, global_out: Tensor | None, qkv_bias: Tensor | None, layout: Layout) -> Tensor:
        """(tokens, width): every token over its window and the anchors of its sequence; the anchors' own rows are known."""
        heads, dropout = self.project.num_heads, self.dropout if self.training else 0.0
        if list(self.heads_by_dilation) == [1] and layout.max_seqlen <= self.half_window + 1:  # a window that hides nothing
            mixed = layout.attend_qkv(qkv, heads, None, self.causal, dropout)
            return mixed if global_out is None else mixed.index_copy(0, layout.global_tokens, global_out.to(mixed.dtype))
        qkv, own = qkv.unflatten(-1, (3, heads, -1)), None if global_out is None else global_out.unflatten(-1, (heads, -1))
        turns = None if global_out is None else self._cos_sin(layout, qkv.device)
        sights = [
            AttentionPattern(self.half_window, step, self.causal, global_out is not None) for step in self.heads_by_dilation
        ]
        if len(sights) == 1:
            bias = None if qkv_bias is None else qkv_bias.unflatten(-1, (3, heads, -1))
            return longformer_attention(qkv, own, bias, layout, sights[0], dropout, turns).flatten(-2)
        outs = [  # of some heads alone: a sum of their slopes would be the bias's in part
            longformer_attention(qkv[..., some, :], None if own is None else own[:, some], None, layout, sight, dropout, turns)
            for sight, some in zip(sights, self.heads_by_dilation.values(), strict=True)
        ]
        order = torch.tensor([head for some in self.heads_by_dilation.values() for head in some], device=qkv.device).argsort()
        return torch.cat(outs, 1).index_select(1, order).flatten(-2)

    def _project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(tokens, 3 x width): queries, keys and values of all; what the anchors see, if there are any; a bias (`asked`)."""
        qkv, anchored = self.project.qkv, self.anchored
        if anchored is None:
            return qkv(x), None, None
        learns = torch.is_grad_enabled() and not torch.compiler.is_compiling() and not (self.dropout and self.training)
        found, folds = self._global_groups(x, layout)
        if folds and found and learns and type(qkv) is nn.Linear:
            return fused_qkv_and_global(x, qkv, anchored, found, layout, self.project.num_heads)
        return qkv(x), self._global_attention(x, layout), None

    def _global_groups(self, x: Tensor, layout: Layout) -> tuple[list[GlobalGroup], bool]:
        """Where anchors are held against their tokens, and whether they are so few that keys and values are folded."""
        folds = type(self.anchored) is nn.Linear and self.rotary is None  # nothing is turned, or learns beside it (LoRA)
        most = (
            max(1, x.shape[1] // self.project.num_heads // 2) if folds else MAX_GLOBAL_PER_GROUP
        )  # more gain from keys and values
        found: list[GlobalGroup] = layout.memoize(
            ("sheets", most, self.causal), lambda: build_global_groups(layout, most, self.causal)
        )
        return found, folds and (torch.compiler.is_compiling() or all(sheet.masked_out.shape[-2] <= most for sheet in found))

    def _global_attention(self, x: Tensor, layout: Layout) -> Tensor:
        """(anchors, width): the anchors over all tokens of their sequences."""
        found, folds = self._global_groups(x, layout)
        if folds:
            rows = x[layout.global_tokens]
            outs = [
                self._folded_global_attention(sheet.select_global(rows), sheet.select_tokens(x, layout), sheet.masked_out)
                for sheet in found
            ]
        else:
            rows, k, v = self._global_qkv(x, layout)
            outs = [
                self._weighted_values(
                    self._global_scores(sheet, rows, k, layout), sheet.select_tokens(v, layout), sheet.masked_out
                )
                for sheet in found
            ]
        return torch.cat([out.flatten(0, -2) for out in outs]) if outs else x[:0]

    def _global_qkv(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the anchors, (anchors, width), keys and values of every token, (tokens, width); none is turned."""
        if type(self.anchored) is not nn.Linear:
            assert self.anchored is not None
            q, k, v = self.anchored(x).chunk(3, -1)
            return q[layout.global_tokens], k, v
        (own, rest), bias, width = self.anchored.weight.tensor_split([x.shape[1]]), self.anchored.bias, x.shape[1]
        begin, end = (None, None) if bias is None else (bias[:width], bias[width:])
        k, v = F.linear(x, rest, end).chunk(2, -1)
        return F.linear(x[layout.global_tokens], own, begin), k, v

    def _global_scores(self, group: GlobalGroup, global_queries: Tensor, k: Tensor, layout: Layout) -> Tensor:
        """(.., heads, anchors, tokens) of (anchors, width) and (tokens, width), by plain products: queries are few."""
        q, k = (
            t.unflatten(-1, (self.project.num_heads, -1))
            for t in (group.select_global(global_queries), group.select_tokens(k, layout))
        )
        turns = self._cos_sin(layout, q.device)
        if turns is None:
            return qk_scores(q, k)
        at, place = group.select_global(layout.position[layout.global_tokens]), group.select_tokens(layout.position, layout)
        return clamped_scores(q, k, turns, at, place, self.half_window)

    def _weighted_values(self, scores: Tensor, v: Tensor, masked_out: Tensor) -> Tensor:
        """(.., anchors, width): of (.., heads, anchors, tokens) and (.., tokens, width)."""
        v = v.unflatten(-1, (self.project.num_heads, -1)).transpose(-3, -2)
        return (self._attention_probs(scores, masked_out[..., None, :, :]).to(v.dtype) @ v).transpose(-3, -2).flatten(-2)

    def _folded_global_attention(self, global_hidden: Tensor, x: Tensor, masked_out: Tensor) -> Tensor:
        """The same of what they are made of, as `asking` has it, by torch's own means: keys and values of every token cost
        more than a few anchors gain."""
        assert self.anchored is not None
        heads, bias = self.project.num_heads, self.anchored.bias
        (wq, wk, wv), (bq, _, bv) = self.anchored.weight.chunk(3), [None] * 3 if bias is None else bias.chunk(3)
        wk, wv = (weight.unflatten(0, (heads, -1)).to(x.dtype) for weight in (wk, wv))
        q = F.linear(global_hidden, wq, bq).unflatten(-1, (heads, -1)) * (x.shape[-1] // heads) ** -0.5
        asked = torch.einsum("...ahd,hdw->...ahw", q, wk)
        scores = (asked.flatten(-3, -2) @ x.mT).unflatten(-2, asked.shape[-3:-1])  # (.., anchors, heads, tokens)
        weights = self._attention_probs(scores, masked_out[..., None, :]).to(x.dtype)
        means = (weights.flatten(-3, -2) @ x).unflatten(-2, asked.shape[-3:-1])
        out = torch.einsum("...ahw,hdw->...ahd", means, wv).flatten(-2)
        return out if bv is None else out + bv

    def _attention_probs(self, scores: Tensor, masked_out: Tensor) -> Tensor:
        """(.., tokens): of what is not hidden, adding up to 1 in training but for what drops out."""
        shares = scores.masked_fill(masked_out, float("-inf")).softmax(
            -1, torch.float32 if scores.dtype in FLASH_DTYPES else None
        )
        return F.dropout(shares, self.dropout, self.training)

    def _apply_rope(self, qkv: Tensor, layout: Layout) -> Tensor:
        turns = self._cos_sin(layout, qkv.device)
        return qkv if turns is None else apply_rope(qkv, turns, layout.position, self.project.num_heads)

    def _cos_sin(self, layout: Layout, device: torch.device) -> Tensor | None:
        """For places, and for the edges of windows around them."""
        return (
            None
            if self.rotary is None
            else self.rotary.cos_sin(layout.max_seqlen + self.half_window * max(self.heads_by_dilation), device)
        )
