"""Longformer: a window around each token, and a few anchors that see, and are seen by, their whole sequence."""

from typing import Annotated

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ....config import Chance, Count, Positive, Variant, Whole
from ....errors import BadInput
from ...packing import FLASH, Layout
from ...positions import Rotary, turned
from ..base import Heads, Mixer
from .attention import reached
from .clamped_rope import products, scores
from .global_attention import MANY, Sheet, Sight, sheets
from .global_queries import asked


class Window(Variant, frozen=True):
    heads: Annotated[Count, "attention heads"] = 12
    reach: Annotated[
        tuple[Count, ...], Meta(min_length=1), "tokens seen on each side: half of the paper's window; or one for each layer"
    ] = (256,)
    dilation: Annotated[tuple[Count, ...], "of the last heads, such as [2, 2]: each sees every second token, twice as far"] = ()
    dilated: Annotated[Whole | None, "layers from the top whose heads are dilated; all, if none"] = None
    anchors: Annotated[bool, "tokens that meet their whole sequence: those a task chooses, or [CLS]"] = True
    causal: Annotated[bool, "see only what came before"] = False
    dropout: Annotated[Chance, "on attention weights; above 0 takes a slower path"] = 0.0
    bias: Annotated[bool, "add a bias after each matrix"] = True
    rotary: Annotated[Positive | None, "longest period of rotary positions, such as 10000; with model.table=false"] = None

    def at(self, layer: int, layers: int) -> "Window":
        """That of one layer."""
        if len(self.reach) not in (1, layers):
            raise BadInput(f"model.mixer.reach has {len(self.reach)} numbers for {layers} layers; give one, or one each")
        if self.dilated is not None and not self.dilation:
            raise BadInput(f"dilated={self.dilated} says which layers have dilated heads, of which there are none; name some, "
                           "such as dilation=[2, 2], or leave it out")  # fmt: skip
        dilation = self.dilation if self.dilated is None or layer >= layers - self.dilated else ()
        reach = self.reach[layer if len(self.reach) > 1 else 0]
        return msgspec.structs.replace(self, reach=(reach,), dilation=dilation, dilated=None)

    def build(self, width: int) -> Mixer:
        return WindowAttention(self.at(0, 1), width)


class WindowAttention(Mixer):
    def __init__(self, config: Window, width: int) -> None:
        super().__init__()
        if len(config.dilation) > config.heads:
            raise BadInput(f"model.mixer.dilation has {len(config.dilation)} numbers for {config.heads} heads; shorten it")
        self.causal, self.dropout, (self.reach,) = config.causal, config.dropout, config.reach
        self.project = Heads(width, config.heads, config.bias)
        self.anchored = nn.Linear(width, 3 * width, bias=config.bias) if config.anchors else None  # section 3.1: its own
        if self.anchored is not None:
            self.anchored.weight.parts = 3  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.rotary = Rotary(width // config.heads, config.rotary) if config.rotary else None
        steps = [1] * (config.heads - len(config.dilation)) + list(config.dilation)
        self.steps = {step: [n for n, one in enumerate(steps) if one == step] for step in sorted(set(steps))}

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.prefix is not None:
            raise BadInput("a window does not know of prefixes that see each other (UniLM); train a model with mixer=dense")
        qkv, rows, shift = self._asked(x, layout)
        return self.project.out(self._near(self._turned(qkv, layout), rows, shift, layout))

    def _near(self, qkv: Tensor, rows: Tensor | None, shift: Tensor | None, layout: Layout) -> Tensor:
        """(tokens, width): every token over its window and the anchors of its sequence; the anchors' own rows are known."""
        heads, dropout = self.project.heads, self.dropout if self.training else 0.0
        if list(self.steps) == [1] and layout.longest <= self.reach + 1:  # a window that hides nothing
            mixed = layout.mix(qkv, heads, None, self.causal, dropout)
            return mixed if rows is None else mixed.index_copy(0, layout.anchored, rows.to(mixed.dtype))
        qkv, own = qkv.unflatten(-1, (3, heads, -1)), None if rows is None else rows.unflatten(-1, (heads, -1))
        turns = None if rows is None else self._turns(layout, qkv.device)
        sights = [Sight(self.reach, step, self.causal, rows is not None) for step in self.steps]
        if len(sights) == 1:
            bias = None if shift is None else shift.unflatten(-1, (3, heads, -1))
            return reached(qkv, own, bias, layout, sights[0], dropout, turns).flatten(-2)
        outs = [  # of some heads alone: a sum of their slopes would be the bias's in part
            reached(qkv[..., some, :], None if own is None else own[:, some], None, layout, sight, dropout, turns)
            for sight, some in zip(sights, self.steps.values(), strict=True)
        ]
        order = torch.tensor([head for some in self.steps.values() for head in some], device=qkv.device).argsort()
        return torch.cat(outs, 1).index_select(1, order).flatten(-2)

    def _asked(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(tokens, 3 x width): queries, keys and values of all; what the anchors see, if there are any; a bias (`asked`)."""
        qkv, anchored = self.project.qkv, self.anchored
        if anchored is None:
            return qkv(x), None, None
        learns = torch.is_grad_enabled() and not torch.compiler.is_compiling() and not (self.dropout and self.training)
        found, folds = self._sheets(x, layout)
        if folds and found and learns and type(qkv) is nn.Linear:
            return asked(x, qkv, anchored, found, layout, self.project.heads)
        return qkv(x), self._far(x, layout), None

    def _sheets(self, x: Tensor, layout: Layout) -> tuple[list[Sheet], bool]:
        """Where anchors are held against their tokens, and whether they are so few that keys and values are folded."""
        folds = type(self.anchored) is nn.Linear and self.rotary is None  # nothing is turned, or learns beside it (LoRA)
        most = max(1, x.shape[1] // self.project.heads // 2) if folds else MANY  # more gain from keys and values
        found: list[Sheet] = layout.once(("sheets", most, self.causal), lambda: sheets(layout, most, self.causal))
        return found, folds and (torch.compiler.is_compiling() or all(sheet.hidden.shape[-2] <= most for sheet in found))

    def _far(self, x: Tensor, layout: Layout) -> Tensor:
        """(anchors, width): the anchors over all tokens of their sequences."""
        found, folds = self._sheets(x, layout)
        if folds:
            rows = x[layout.anchored]
            outs = [self._folded(sheet.anchors(rows), sheet.tokens(x, layout), sheet.hidden) for sheet in found]
        else:
            rows, k, v = self._asking(x, layout)
            outs = [self._met(self._scores(sheet, rows, k, layout), sheet.tokens(v, layout), sheet.hidden) for sheet in found]
        return torch.cat([out.flatten(0, -2) for out in outs]) if outs else x[:0]

    def _asking(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the anchors, (anchors, width), keys and values of every token, (tokens, width); none is turned."""
        if type(self.anchored) is not nn.Linear:
            assert self.anchored is not None
            q, k, v = self.anchored(x).chunk(3, -1)
            return q[layout.anchored], k, v
        (own, rest), bias, width = self.anchored.weight.tensor_split([x.shape[1]]), self.anchored.bias, x.shape[1]
        begin, end = (None, None) if bias is None else (bias[:width], bias[width:])
        k, v = F.linear(x, rest, end).chunk(2, -1)
        return F.linear(x[layout.anchored], own, begin), k, v

    def _scores(self, sheet: Sheet, rows: Tensor, k: Tensor, layout: Layout) -> Tensor:
        """(.., heads, anchors, tokens) of (anchors, width) and (tokens, width), by plain products: queries are few."""
        q, k = (t.unflatten(-1, (self.project.heads, -1)) for t in (sheet.anchors(rows), sheet.tokens(k, layout)))
        turns = self._turns(layout, q.device)
        if turns is None:
            return products(q, k)
        at, place = sheet.anchors(layout.place[layout.anchored]), sheet.tokens(layout.place, layout)
        return scores(q, k, turns, at, place, self.reach)

    def _met(self, scores: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """(.., anchors, width): of (.., heads, anchors, tokens) and (.., tokens, width)."""
        v = v.unflatten(-1, (self.project.heads, -1)).transpose(-3, -2)
        return (self._weights(scores, hidden[..., None, :, :]).to(v.dtype) @ v).transpose(-3, -2).flatten(-2)

    def _folded(self, asking: Tensor, x: Tensor, hidden: Tensor) -> Tensor:
        """The same of what they are made of, as `asking` has it, by torch's own means: keys and values of every token cost
        more than a few anchors gain."""
        assert self.anchored is not None
        heads, bias = self.project.heads, self.anchored.bias
        (wq, wk, wv), (bq, _, bv) = self.anchored.weight.chunk(3), [None] * 3 if bias is None else bias.chunk(3)
        wk, wv = (weight.unflatten(0, (heads, -1)).to(x.dtype) for weight in (wk, wv))
        q = F.linear(asking, wq, bq).unflatten(-1, (heads, -1)) * (x.shape[-1] // heads) ** -0.5
        asked = torch.einsum("...ahd,hdw->...ahw", q, wk)
        scores = (asked.flatten(-3, -2) @ x.mT).unflatten(-2, asked.shape[-3:-1])  # (.., anchors, heads, tokens)
        weights = self._weights(scores, hidden[..., None, :]).to(x.dtype)
        means = (weights.flatten(-3, -2) @ x).unflatten(-2, asked.shape[-3:-1])
        out = torch.einsum("...ahw,hdw->...ahd", means, wv).flatten(-2)
        return out if bv is None else out + bv

    def _weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        """(.., tokens): of what is not hidden, adding up to 1 in training but for what drops out."""
        shares = scores.masked_fill(hidden, float("-inf")).softmax(-1, torch.float32 if scores.dtype in FLASH else None)
        return F.dropout(shares, self.dropout, self.training)

    def _turned(self, qkv: Tensor, layout: Layout) -> Tensor:
        turns = self._turns(layout, qkv.device)
        return qkv if turns is None else turned(qkv, turns, layout.place, self.project.heads)

    def _turns(self, layout: Layout, device: torch.device) -> Tensor | None:
        """For places, and for the edges of windows around them."""
        return None if self.rotary is None else self.rotary.turns(layout.longest + self.reach * max(self.steps), device)
