"""Sequences laid out so that their anchors are held against their own tokens, and against few others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ... import kernels
from ...packing import FLASH, Layout

EMPTY = 2  # a rectangle around all sequences may be so many times as large as they are


@dataclass(frozen=True)
class Sheet:
    """The sequences of a run, one after another; or all of them in a rectangle, each with its first token as anchor."""

    hidden: Tensor  # (anchors, tokens), or (sequences, 1, longest) bool: of another sequence, or yet to come
    here: slice | None = None  # the tokens of a run; None: the rectangle
    some: slice | None = None  # its anchors, among all anchors

    def tokens(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, ..) -> (tokens of the run, ..) or (sequences, longest, ..)"""
        return layout.grid(x) if self.here is None else x[self.here]

    def anchors(self, rows: Tensor) -> Tensor:
        """(anchors, ..) -> (anchors of the run, ..) or (sequences, 1, ..)"""
        return rows[:, None] if self.some is None else rows[self.some]

    def groups(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, width) -> (groups, tokens, width): a run is one group, in a rectangle each sequence is."""
        found = self.tokens(x, layout)
        return found if self.here is None else found[None]

    def grouped(self, rows: Tensor) -> Tensor:
        """(heads, anchors, width) -> (groups, heads x anchors of each, width)"""
        return rows.transpose(0, 1) if self.some is None else rows[:, self.some].reshape(1, -1, rows.shape[-1])

    def apart(self, rows: Tensor, heads: int) -> Tensor:
        """The way back: (heads, anchors of this sheet, width)."""
        return rows.transpose(0, 1) if self.some is None else rows[0].unflatten(0, (heads, -1))

    def add(self, x: Tensor, left: Tensor, right: Tensor, layout: Layout) -> None:
        """Adds the product of (groups, tokens, n) and (groups, n, width) to the tokens, in place where they lie as groups."""
        if self.here is None and not layout.views:
            x += layout.flat(left @ right)
        else:
            self.groups(x, layout).baddbmm_(left, right)


def sheets(layout: Layout, most: int, causal: bool = False) -> list[Sheet]:
    """Runs of at most `most` anchors, or of one sequence; or one rectangle, where that is all anchors need.

    A compiled graph cannot depend on where sequences end: there, anchors that somebody chose are one run over all tokens.
    """
    compiling, tokens = torch.compiler.is_compiling(), layout.owner.shape[0]
    many = layout.sequences > most and layout.sequences * layout.longest <= EMPTY * tokens  # few need no copy of the tokens
    if layout.anchors is None and (compiling or many):
        return [Sheet(_hidden_in_rows(layout, causal))]
    if compiling:
        return [_sheet(layout, slice(0, tokens), slice(0, layout.anchored.shape[0]), causal)]
    starts, borders = _borders(layout)
    among = [one for one in range(layout.sequences) if borders[one] < borders[one + 1]]
    found = ((slice(starts[a], starts[b]), slice(borders[a], borders[b])) for a, b in runs(among, borders, most))
    return [_sheet(layout, *both, causal) for both in found]


def runs(sequences: Sequence[int], borders: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """The first of each run, and the one behind its last: neighbours that have no more than `most` anchors together.

    Those of sequence n lie between `borders` n and n + 1; one that has more than so many is a run by itself.
    """
    begin = end = -1
    for one in sequences:
        if begin >= 0 and (one != end or borders[one + 1] - borders[begin] > most):
            yield begin, end
            begin = -1
        begin, end = one if begin < 0 else begin, one + 1
    if begin >= 0:
        yield begin, end


def _borders(layout: Layout) -> tuple[list[int], list[int]]:
    """Where each sequence begins among the tokens, and its anchors among the anchors; found on the host."""
    if layout.gapless:
        starts = np.concatenate([[0], np.array(layout.lengths.tolist(), np.int64).cumsum()])
    else:
        starts = np.array(layout.starts.tolist())
    chosen = starts[:-1] if layout.anchors is None else np.array(layout.anchors.tolist(), np.int64)
    return starts.tolist(), np.searchsorted(chosen, starts).tolist()


def _sheet(layout: Layout, here: slice, some: slice, causal: bool) -> Sheet:
    owner, place, anchors = layout.owner, layout.place, layout.anchored[some]
    hidden = owner[anchors][:, None] != owner[here]
    return Sheet(hidden | (place[here] > place[anchors][:, None]) if causal else hidden, here, some)


def _hidden_in_rows(layout: Layout, causal: bool) -> Tensor:
    """(sequences, 1, longest): what is no token of a row has no owner there, and so none has the row's."""
    owner, place, firsts = layout.owner + 1, layout.place, layout.firsts
    hidden = layout.grid(owner) != owner[firsts][:, None]
    return (hidden | (layout.grid(place) > place[firsts][:, None]) if causal else hidden)[:, None]


MANY = 64  # anchors that tokens are held against at once; those of other sequences are hidden then


@dataclass(frozen=True)
class Sight:
    """What a token sees: every `step`-th token of its sequence, `reach` of them on each side, and anchors."""

    reach: int
    step: int = 1
    causal: bool = False
    anchored: bool = False

    @property
    def edge(self) -> int:
        """How far it sees."""
        return self.reach * self.step

    def near(self, behind: Tensor) -> Tensor:
        """Whether a token so far behind (or ahead, if negative) is within reach."""
        inside = (behind <= self.edge) & (behind >= (0 if self.causal else -self.edge))
        return inside & (behind % self.step == 0)


@dataclass(frozen=True)
class Run:
    """Sequences whose tokens are held against all of their anchors at once."""

    here: slice  # tokens
    anchors: Tensor  # (anchors,): among all tokens
    hidden: Tensor  # (tokens of the run, anchors) bool: of another sequence, within reach, or yet to come


@dataclass(frozen=True)
class Far:
    """Where tokens and anchors stand; the tokens may be in any order that keeps sequences together."""

    sight: Sight
    starts: np.ndarray  # (sequences + 1,): where each sequence begins, and the last ends
    owner: Tensor  # (tokens,)
    place: Tensor
    anchors: Tensor  # (anchors,): among the tokens, those of a sequence beside each other
    borders: np.ndarray  # (sequences + 1,): where the anchors of each begin
    late: bool = True  # whether a token may have an anchor ahead of it that is not in its window

    def join(self, qkv: Tensor, out: Tensor, sums: Tensor, scale: float) -> None:
        """`out` and `sums`, of tokens over those near them, become those of both."""
        if self._quick(qkv):
            from ...kernels.global_attention import joined

            return joined(qkv, out, sums, self._where, self._rule, scale)
        q, k, v = qkv.unbind(1)
        for run in self.runs:
            scores, before = _scores(q, k, run, scale), sums[:, run.here]
            total = torch.logaddexp(before, scores.logsumexp(-1))
            far = (scores - total[..., None]).exp_() @ _heads(v[run.anchors])
            kept = _heads(out[run.here]) * (before - total).exp_()[..., None]
            out[run.here] = (kept + far).transpose(0, 1).to(out.dtype)
            sums[:, run.here] = total

    def back(
        self, grad: Tensor, qkv: Tensor, out: Tensor, sums: Tensor, down: tuple[Tensor, Tensor, Tensor], scale: float,
        total: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """(tokens, 3, heads, width): slopes of queries, keys and values, of which those in `down` are of what lies within; if
        `total`, what they add up to, (3, heads, width), where that is known without reading them again."""
        if self._quick(qkv) and not torch.are_deterministic_algorithms_enabled():
            from ...kernels.global_attention import slopes

            slope, parts, more = slopes(grad, qkv, out, sums, down, self._where, self._rule, scale)
            slope[:, 1:].index_add_(0, self.anchors, more.to(slope.dtype))
            return slope, parts.sum(0) if total else None
        (q, k, v), (dq, dk, dv) = qkv.unbind(1), down
        for run in self.runs:
            above, asked = _heads(grad[run.here]), _heads(q[run.here])
            weights = (_scores(q, k, run, scale) - sums[:, run.here, None]).exp_()
            slope = above @ _heads(v[run.anchors]).mT - (above * _heads(out[run.here])).sum(-1, keepdim=True)
            slope = slope * weights * scale
            dq[run.here] += (slope @ _heads(k[run.anchors])).transpose(0, 1).to(dq.dtype)
            dk.index_add_(0, run.anchors, (slope.mT @ asked).transpose(0, 1).to(dk.dtype))
            dv.index_add_(0, run.anchors, (weights.mT @ above).transpose(0, 1).to(dv.dtype))
        return torch.stack(down, 1), None

    @cached_property
    def beyond(self) -> list[int]:
        """The sequences that have anchors, and tokens that do not see them through their windows."""
        longer = (np.diff(self.starts) > self.sight.reach + 1) | (self.sight.step > 1)
        found: list[int] = np.flatnonzero(longer & (np.diff(self.borders) > 0)).tolist()
        return found

    @cached_property
    def sides(self) -> list[tuple["Far", bool]]:
        """The same of anchors behind a token alone; then, if there are any, of those ahead, for which places are counted
        backwards. True is said of the first."""
        alone = replace(self.sight, causal=True)
        found = [(replace(self, sight=alone), True), (replace(self, sight=alone, place=-self.place), False)]
        return found if self.late and not self.sight.causal else found[:1]

    @cached_property
    def runs(self) -> list[Run]:
        starts, borders = self.starts.tolist(), self.borders.tolist()
        return [
            self._run(slice(starts[a], starts[b]), slice(borders[a], borders[b])) for a, b in runs(self.beyond, borders, MANY)
        ]

    def _run(self, here: slice, some: slice) -> Run:
        anchors = self.anchors[some]
        behind = self.place[here, None] - self.place[anchors]
        hidden = (self.owner[here, None] != self.owner[anchors]) | self.sight.near(behind)
        return Run(here, anchors, hidden | (behind < 0) if self.sight.causal else hidden)

    def _quick(self, qkv: Tensor) -> bool:
        if not kernels.serves(qkv):
            return False
        from ...kernels.global_attention import fits

        return fits(qkv)

    @cached_property
    def _where(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first = torch.from_numpy(self.borders).to(self.owner.device, non_blocking=True)
        return self.owner, self.place, self.anchors, first

    @property
    def _rule(self) -> tuple[int, int, bool]:
        return self.sight.edge, self.sight.step, self.sight.causal


def _scores(q: Tensor, k: Tensor, run: Run, scale: float) -> Tensor:
    """(heads, tokens of the run, anchors)"""
    scores = _heads(q[run.here]) @ _heads(k[run.anchors]).mT * scale
    return scores.masked_fill_(run.hidden, float("-inf"))


def _heads(x: Tensor) -> Tensor:
    """(tokens, heads, width) -> (heads, tokens, width) in float32"""
    return x.transpose(0, 1).float() if x.dtype in FLASH else x.transpose(0, 1)
