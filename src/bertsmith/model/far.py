"""Anchors that lie beyond a token's window, joined to the softmax over what lies within."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from . import kernels
from .layout import FLASH
from .sheets import runs

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
            from .kernels.anchors import joined

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
            from .kernels.anchors import slopes

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
        from .kernels.anchors import fits

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
