"""Attention within reach and to the anchors beyond it, in one softmax, at a cost linear in the tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .band import Band
from .far import Far, Sight
from .layout import FLASH, Layout
from .near import Blocks, Flash, Near


@dataclass(frozen=True)
class Course:
    """The tokens in an order in which those that `step` apart are neighbours: dilation is then a plain window."""

    layout: Layout  # of what are sequences in this order
    order: Tensor | None  # None: as they are
    back: Tensor | None
    anchors: Tensor  # (anchors,): where they stand in this order
    far: Far | None  # None: none of them lies beyond a window


def reached(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, sight: Sight, anchored: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """(tokens, heads, width) three times in, once out. `anchored` (anchors, heads, width) is what anchors themselves see,
    which is another's work, and stands in their rows."""
    quick = q.dtype in FLASH if q.is_cuda else not torch.compiler.is_compiling()
    if quick and layout.gapless and not dropout:
        return _quick(q, k, v, layout, sight, anchored)
    out = _plain(q, k, v, layout, sight, dropout)
    return out if anchored is None else out.index_copy(0, layout.anchored, anchored.to(out.dtype))


@torch.compiler.disable
def _quick(q: Tensor, k: Tensor, v: Tensor, layout: Layout, sight: Sight, anchored: Tensor | None) -> Tensor:
    """By kernels, which no compiler need see: on CUDA a graph ends before them and begins again behind them."""
    course: Course = layout.once(sight, lambda: _course(layout, sight))
    width, gap = q.shape[-1], -q.shape[-1] % 8 if q.is_cuda else 0
    if gap:  # heads as the kernel wants them; zeros add nothing to a product
        q, k, v = (F.pad(t, (0, gap)) for t in (q, k, v))
        anchored = None if anchored is None else F.pad(anchored, (0, gap))
    if course.order is not None:
        q, k, v = (t.index_select(0, course.order) for t in (q, k, v))
    near = (Flash if q.is_cuda else Blocks)(course.layout, sight.reach, sight.causal)
    out: Tensor = _Joined.apply(q, k, v, anchored, near, course, width**-0.5)
    return (out if course.back is None else out.index_select(0, course.back))[..., :width]


class _Joined(torch.autograd.Function):
    """Scores are computed again on the way back: nothing as large as they are is kept.

    So is the output kept once, with the anchors' rows in it: on the way back those ask for nothing here.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, anchored: Tensor | None, near: Near, course: Course, scale: float
    ) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            out, sums = near.forward(q, k, v, scale)
            if course.far is not None:
                course.far.join(q, k, v, out, sums, scale)
            if anchored is not None:
                out.index_copy_(0, course.anchors, anchored.to(out.dtype))
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.how = None if anchored is None else anchored.dtype, near, course, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (*given, out, sums), (kind, near, course, scale) = ctx.saved_tensors, ctx.how
        rows = None if kind is None else grad[course.anchors].to(kind)
        grad = grad.contiguous() if kind is None else grad.index_fill(0, course.anchors, 0).contiguous()
        with torch.autocast(grad.device.type, enabled=False):
            down = near.backward(grad, *given, out, sums, scale)
            if course.far is not None:
                course.far.back(grad, given, out, sums, down, scale)
        return *down, rows, None, None, None


def _course(layout: Layout, sight: Sight) -> Course:
    """Found on the host, once a batch."""
    sizes, device, step = np.array(layout.lengths.tolist()), layout.owner.device, sight.step
    starts = np.concatenate([[0], sizes.cumsum()])
    chosen = starts[:-1] if layout.anchors is None else np.array(layout.anchors.tolist(), np.int64)
    anchors = chosen if sight.anchored else chosen[:0]
    borders = np.searchsorted(anchors, starts)
    within, owner, place, order, back = layout, layout.owner, layout.place, None, None
    if step > 1:
        there = _dilated(sizes, starts, step)
        here = np.argsort(there)
        order, back = (torch.from_numpy(one).to(device) for one in (there, here))
        shorter = [-(-(size - first) // step) for size in sizes.tolist() for first in range(min(step, size))]
        within, owner, place, anchors = Layout.of(shorter).to(device), owner[order], place[order], here[anchors]
    far = Far(sight, starts, owner, place, torch.from_numpy(anchors).to(device), borders)
    return Course(within, order, back, far.anchors, far if far.beyond else None)


def _dilated(sizes: np.ndarray, starts: np.ndarray, step: int) -> np.ndarray:
    """(tokens,): of each sequence every `step`-th token, then those one behind them, and so on."""
    owner = np.arange(len(sizes)).repeat(sizes)
    place = np.arange(len(owner)) - starts[owner]
    return np.lexsort((place, place % step, owner))


def _plain(q: Tensor, k: Tensor, v: Tensor, layout: Layout, sight: Sight, dropout: float) -> Tensor:
    """The same for any numbers, any device, padded rectangles and compiled graphs: anchors stand beside the band's keys."""
    owner, anchors = layout.owner, layout.anchored if sight.anchored else layout.firsts[:0]
    band = Band(owner.shape[0], sight.reach * sight.step, sight.causal)
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    seen = layout.once(("seen", sight), lambda: _seen(band, layout, sight, anchors))
    keys, values = (torch.cat([band.keys(t), t[:, None, anchors].expand(-1, band.blocks, -1, -1)], dim=2) for t in (k, v))
    mixed = F.scaled_dot_product_attention(band.queries(q), keys, values, seen, dropout_p=dropout)
    return band.flat(mixed).transpose(0, 1)


def _seen(band: Band, layout: Layout, sight: Sight, anchors: Tensor) -> Tensor:
    """(1, blocks, block, sight of the band + anchors): an anchor is met once, among the anchors."""
    owner, place = layout.owner, layout.place
    anchored = torch.zeros_like(owner, dtype=torch.bool).index_fill(0, anchors, True)
    beside = band.visible(owner) & ~band.keys(anchored[:, None]).mT & (band.ahead(owner.device) % sight.step == 0)
    among = band.queries(owner[:, None], fill=-1) == owner[anchors]
    if sight.causal:
        among = among & (band.queries(place[:, None]) >= place[anchors])
    return torch.cat([beside, among], dim=-1)[None]
