"""Attention within reach and to the anchors beyond it, in one softmax, at a cost linear in the tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...packing import FLASH, Layout
from ..block_band import Band
from .clamped_rope import Edge, doubled
from .global_attention import Far, Sight
from .local import Blocks, Flash, Near


@dataclass(frozen=True)
class Course:
    """The tokens in an order in which those that `step` apart are neighbours: dilation is then a plain window."""

    layout: Layout  # of what are sequences in this order
    order: Tensor | None  # None: as they are
    back: Tensor | None
    anchors: Tensor  # (anchors,): where they stand in this order
    far: Far | None  # None: none of them lies beyond a window


def reached(
    qkv: Tensor, anchored: Tensor | None, shift: Tensor | None, layout: Layout, sight: Sight, dropout: float = 0.0,
    turns: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(tokens, 3, heads, width) -> (tokens, heads, width). `anchored` (anchors, heads, width) is what anchors themselves
    see, which is another's work, and stands in their rows. `shift` (3, heads, width) has been added to every row of `qkv`;
    its slope is given where it costs nothing. By `turns` queries and keys have been turned, if they have (`Edge`)."""
    quick = qkv.dtype in FLASH if qkv.is_cuda else not torch.compiler.is_compiling()
    if quick and layout.gapless and not dropout:
        return _quick(qkv, anchored, shift, layout, sight, turns)
    out = _plain(qkv, layout, sight, dropout, turns)
    return out if anchored is None else out.index_copy(0, layout.anchored, anchored.to(out.dtype))


@torch.compiler.disable
def _quick(
    qkv: Tensor, anchored: Tensor | None, shift: Tensor | None, layout: Layout, sight: Sight, turns: Tensor | None
) -> Tensor:
    """By kernels, which no compiler need see: on CUDA a graph ends before them and begins again behind them."""
    course: Course = layout.once(sight, lambda: _course(layout, sight))
    width, gap = qkv.shape[-1], -qkv.shape[-1] % 8 if qkv.is_cuda else 0
    if gap:  # heads as the kernel wants them; zeros add nothing to a product
        qkv, anchored, shift = F.pad(qkv, (0, gap)), *(None if t is None else F.pad(t, (0, gap)) for t in (anchored, shift))
    if course.order is not None:
        qkv = qkv.index_select(0, course.order)
    near = (Flash if qkv.is_cuda else Blocks)(course.layout, sight.reach, sight.causal)
    far = course.far if course.far is None or turns is None else Edge(course.far, turns)
    out: Tensor = _Joined.apply(qkv.contiguous(), anchored, shift, near, far, course.anchors, width**-0.5)
    out = out if course.back is None else out.index_select(0, course.back)
    return out[..., :width] if gap else out


class _Joined(torch.autograd.Function):
    """Scores are computed again on the way back: nothing as large as they are is kept.

    So is the output kept once, with the anchors' rows in it. On the way back those ask for nothing here: as if the weights of
    what they see had been divided by infinity.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, anchored: Tensor | None, shift: Tensor | None, near: Near, far: Far | Edge | None,
        anchors: Tensor, scale: float,
    ) -> Tensor:  # fmt: skip
        with torch.autocast(qkv.device.type, enabled=False):
            q, k, v = qkv.unbind(1)
            out, sums = near.forward(q, k, v, scale)
            if far is not None:
                far.join(qkv, out, sums, scale)
            if anchored is not None:
                out.index_copy_(0, anchors, anchored.to(out.dtype))
                sums.index_fill_(1, anchors, float("inf"))
        ctx.save_for_backward(qkv, out, sums)
        ctx.how = None if anchored is None else anchored.dtype, near, far, anchors, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (qkv, out, sums), (kind, near, far, anchors, scale), grad = ctx.saved_tensors, ctx.how, grad.contiguous()
        rows, total = None if kind is None else grad.index_select(0, anchors).to(kind), None
        with torch.autocast(grad.device.type, enabled=False):
            down = near.backward(grad, *qkv.unbind(1), out, sums, scale)
            if far is None:
                slope = torch.stack(down, 1)
            else:
                slope, total = far.back(grad, qkv, out, sums, down, scale, ctx.needs_input_grad[2])
        return slope, rows, total, None, None, None, None


def _course(layout: Layout, sight: Sight) -> Course:
    """Found on the host, once a batch."""
    sizes, device, step = np.array(layout.lengths.tolist()), layout.owner.device, sight.step
    starts = np.concatenate([[0], sizes.cumsum()])
    chosen = starts[:-1] if layout.anchors is None else np.array(layout.anchors.tolist(), np.int64)
    anchors = chosen if sight.anchored else chosen[:0]
    borders = np.searchsorted(anchors, starts)
    late = bool((anchors - starts[np.searchsorted(starts, anchors, "right") - 1] > (sight.reach if step == 1 else 0)).any())
    within, owner, place, order, back = layout, layout.owner, layout.place, None, None
    if step > 1:
        there = _dilated(sizes, starts, step)
        here = np.argsort(there)
        order, back = (torch.from_numpy(one).to(device) for one in (there, here))
        shorter = [-(-(size - first) // step) for size in sizes.tolist() for first in range(min(step, size))]
        within, owner, place, anchors = Layout.of(shorter).to(device), owner[order], place[order], here[anchors]
    far = Far(sight, starts, owner, place, torch.from_numpy(anchors).to(device), borders, late)
    return Course(within, order, back, far.anchors, far if far.beyond else None)


def _dilated(sizes: np.ndarray, starts: np.ndarray, step: int) -> np.ndarray:
    """(tokens,): of each sequence every `step`-th token, then those one behind them, and so on."""
    owner = np.arange(len(sizes)).repeat(sizes)
    place = np.arange(len(owner)) - starts[owner]
    return np.lexsort((place, place % step, owner))


def _plain(qkv: Tensor, layout: Layout, sight: Sight, dropout: float, turns: Tensor | None) -> Tensor:
    """The same for any numbers, any device, padded rectangles and compiled graphs: anchors stand beside the band's keys."""
    owner, anchors = layout.owner, layout.anchored if sight.anchored else layout.firsts[:0]
    band = Band(owner.shape[0], sight.edge, sight.causal)
    q, k, v = qkv.unbind(1)
    ends, known = k[anchors], v[anchors]
    if turns is not None:
        (q, k, ends), known = doubled(q, k, turns, anchors, layout.place, sight.edge), torch.cat([known, known])
    q, k, v, ends, known = (t.transpose(0, 1) for t in (q, k, v, ends, known))
    seen = layout.once(("seen", sight, turns is None), lambda: _seen(band, layout, sight, anchors, turns is not None))
    keys, values = (
        torch.cat([band.keys(t), beside[:, None].expand(-1, band.blocks, -1, -1)], dim=2)
        for t, beside in ((k, ends), (v, known))
    )
    mixed = F.scaled_dot_product_attention(band.queries(q), keys, values, seen, dropout_p=dropout, scale=qkv.shape[-1] ** -0.5)
    return band.flat(mixed).transpose(0, 1)


def _seen(band: Band, layout: Layout, sight: Sight, anchors: Tensor, sides: bool) -> Tensor:
    """(1, blocks, block, sight of the band + anchors): within reach, and the anchors beyond it; of two `sides` apart."""
    owner, place = layout.owner, layout.place
    beside = band.visible(owner) & (band.ahead(owner.device) % sight.step == 0)
    behind = band.queries(place[:, None]) - place[anchors]
    among = (band.queries(owner[:, None], fill=-1) == owner[anchors]) & ~sight.near(behind)
    if sight.causal:
        among = among & (behind >= 0)
    if sides:
        among = torch.cat([among & (behind >= 0), among & (behind < 0)], -1)
    return torch.cat([beside, among], dim=-1)[None]
