"""Sequences laid out so that their anchors are held against their own tokens, and against few others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ... import kernels
from ...packing import FLASH_DTYPES, Layout

MAX_PADDING_RATIO = 2  # a rectangle around all sequences may be so many times as large as they are


@dataclass(frozen=True)
class GlobalGroup:
    """The sequences of a run, one after another; or all of them in a rectangle, each with its first token as anchor."""

    masked_out: Tensor  # (anchors, tokens), or (sequences, 1, longest) bool: of another sequence, or yet to come
    token_slice: slice | None = None  # the tokens of a run; None: the rectangle
    global_slice: slice | None = None  # its anchors, among all anchors

    def select_tokens(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, ..) -> (tokens of the run, ..) or (sequences, longest, ..)"""
        return layout.pad(x) if self.token_slice is None else x[self.token_slice]

    def select_global(self, rows: Tensor) -> Tensor:
        """(anchors, ..) -> (anchors of the run, ..) or (sequences, 1, ..)"""
        return rows[:, None] if self.global_slice is None else rows[self.global_slice]

    def group_tokens(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, width) -> (groups, tokens, width): a run is one group, in a rectangle each sequence is."""
        found = self.select_tokens(x, layout)
        return found if self.token_slice is None else found[None]

    def group_global(self, rows: Tensor) -> Tensor:
        """(heads, anchors, width) -> (groups, heads x anchors of each, width)"""
        return rows.transpose(0, 1) if self.global_slice is None else rows[:, self.global_slice].reshape(1, -1, rows.shape[-1])

    def ungroup_global(self, rows: Tensor, num_heads: int) -> Tensor:
        """The way back: (heads, anchors of this sheet, width)."""
        return rows.transpose(0, 1) if self.global_slice is None else rows[0].unflatten(0, (num_heads, -1))

    def add_matmul(self, x: Tensor, left: Tensor, right: Tensor, layout: Layout) -> None:
        """Adds the product of (groups, tokens, n) and (groups, n, width) to the tokens, in place where they lie as groups."""
        if self.token_slice is None and not layout.pad_is_view:
            x += layout.unpad(left @ right)
        else:
            self.group_tokens(x, layout).baddbmm_(left, right)


def build_global_groups(layout: Layout, max_global: int, causal: bool = False) -> list[GlobalGroup]:
    """Runs of at most `most` anchors, or of one sequence; or one rectangle, where that is all anchors need.

    A compiled graph cannot depend on where sequences end: there, anchors that somebody chose are one run over all tokens.
    """
    compiling, tokens = torch.compiler.is_compiling(), layout.seq_id.shape[0]
    many = (
        layout.num_sequences > max_global and layout.num_sequences * layout.max_seqlen <= MAX_PADDING_RATIO * tokens
    )  # few need no copy of the tokens
    if layout.explicit_global_tokens is None and (compiling or many):
        return [GlobalGroup(_padded_mask(layout, causal))]
    if compiling:
        return [_build_group(layout, slice(0, tokens), slice(0, layout.global_tokens.shape[0]), causal)]
    starts, borders = _sequence_offsets(layout)
    among = [one for one in range(layout.num_sequences) if borders[one] < borders[one + 1]]
    found = (
        (slice(starts[a], starts[b]), slice(borders[a], borders[b])) for a, b in group_sequences(among, borders, max_global)
    )
    return [_build_group(layout, *both, causal) for both in found]


def group_sequences(sequences: Sequence[int], cu_global: Sequence[int], max_global: int) -> Iterator[tuple[int, int]]:
    """The first of each run, and the one behind its last: neighbours that have no more than `most` anchors together.

    Those of sequence n lie between `borders` n and n + 1; one that has more than so many is a run by itself.
    """
    begin = end = -1
    for one in sequences:
        if begin >= 0 and (one != end or cu_global[one + 1] - cu_global[begin] > max_global):
            yield begin, end
            begin = -1
        begin, end = one if begin < 0 else begin, one + 1
    if begin >= 0:
        yield begin, end


def _sequence_offsets(layout: Layout) -> tuple[list[int], list[int]]:
    """Where each sequence begins among the tokens, and its anchors among the anchors; found on the host."""
    if layout.is_packed:
        starts = np.concatenate([[0], np.array(layout.lengths.tolist(), np.int64).cumsum()])
    else:
        starts = np.array(layout.cu_seqlens.tolist())
    chosen = (
        starts[:-1] if layout.explicit_global_tokens is None else np.array(layout.explicit_global_tokens.tolist(), np.int64)
    )
    return starts.tolist(), np.searchsorted(chosen, starts).tolist()


def _build_group(layout: Layout, token_slice: slice, global_slice: slice, causal: bool) -> GlobalGroup:
    owner, place, anchors = layout.seq_id, layout.position, layout.global_tokens[global_slice]
    hidden = owner[anchors][:, None] != owner[token_slice]
    return GlobalGroup(hidden | (place[token_slice] > place[anchors][:, None]) if causal else hidden, token_slice, global_slice)


def _padded_mask(layout: Layout, causal: bool) -> Tensor:
    """(sequences, 1, longest): what is no token of a row has no owner there, and so none has the row's."""
    owner, place, firsts = layout.seq_id + 1, layout.position, layout.first_token
    hidden = layout.pad(owner) != owner[firsts][:, None]
    return (hidden | (layout.pad(place) > place[firsts][:, None]) if causal else hidden)[:, None]


MAX_GLOBAL_PER_GROUP = 64  # anchors that tokens are held against at once; those of other sequences are hidden then


@dataclass(frozen=True)
class AttentionPattern:
    """What a token sees: every `step`-th token of its sequence, `reach` of them on each side, and anchors."""

    half_window: int
    dilation: int = 1
    causal: bool = False
    has_global_tokens: bool = False

    @property
    def max_distance(self) -> int:
        """How far it sees."""
        return self.half_window * self.dilation

    def in_window(self, distance: Tensor) -> Tensor:
        """Whether a token so far behind (or ahead, if negative) is within reach."""
        inside = (distance <= self.max_distance) & (distance >= (0 if self.causal else -self.max_distance))
        return inside & (distance % self.dilation == 0)


@dataclass(frozen=True)
class GlobalKeyGroup:
    """Sequences whose tokens are held against all of their anchors at once."""

    token_slice: slice  # tokens
    global_tokens: Tensor  # (anchors,): among all tokens
    masked_out: Tensor  # (tokens of the run, anchors) bool: of another sequence, within reach, or yet to come


@dataclass(frozen=True)
class GlobalAttention:
    """Where tokens and anchors stand; the tokens may be in any order that keeps sequences together."""

    pattern: AttentionPattern
    cu_seqlens: np.ndarray  # (sequences + 1,): where each sequence begins, and the last ends
    seq_id: Tensor  # (tokens,)
    position: Tensor
    global_tokens: Tensor  # (anchors,): among the tokens, those of a sequence beside each other
    cu_global: np.ndarray  # (sequences + 1,): where the anchors of each begin
    has_global_ahead: bool = True  # whether a token may have an anchor ahead of it that is not in its window

    def merge(self, qkv: Tensor, out: Tensor, lse: Tensor, scale: float) -> None:
        """`out` and `sums`, of tokens over those near them, become those of both."""
        if self._can_use_kernel(qkv):
            from ...kernels.global_attention import merge_global_attention

            return merge_global_attention(qkv, out, lse, self._global_index, self._window_spec, scale)
        q, k, v = qkv.unbind(1)
        for run in self.key_groups:
            scores, before = _scores(q, k, run, scale), lse[:, run.token_slice]
            total = torch.logaddexp(before, scores.logsumexp(-1))
            far = (scores - total[..., None]).exp_() @ _heads_first(v[run.global_tokens])
            kept = _heads_first(out[run.token_slice]) * (before - total).exp_()[..., None]
            out[run.token_slice] = (kept + far).transpose(0, 1).to(out.dtype)
            lse[:, run.token_slice] = total

    def backward(
        self, grad_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, local_grads: tuple[Tensor, Tensor, Tensor], scale: float,
        return_bias_grad: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """(tokens, 3, heads, width): slopes of queries, keys and values, of which those in `down` are of what lies within; if
        `total`, what they add up to, (3, heads, width), where that is known without reading them again."""
        if self._can_use_kernel(qkv) and not torch.are_deterministic_algorithms_enabled():
            from ...kernels.global_attention import merge_global_attention_backward

            slope, parts, more = merge_global_attention_backward(
                grad_out, qkv, out, lse, local_grads, self._global_index, self._window_spec, scale
            )
            slope[:, 1:].index_add_(0, self.global_tokens, more.to(slope.dtype))
            return slope, parts.sum(0) if return_bias_grad else None
        (q, k, v), (dq, dk, dv) = qkv.unbind(1), local_grads
        for run in self.key_groups:
            above, asked = _heads_first(grad_out[run.token_slice]), _heads_first(q[run.token_slice])
            weights = (_scores(q, k, run, scale) - lse[:, run.token_slice, None]).exp_()
            slope = above @ _heads_first(v[run.global_tokens]).mT - (above * _heads_first(out[run.token_slice])).sum(
                -1, keepdim=True
            )
            slope = slope * weights * scale
            dq[run.token_slice] += (slope @ _heads_first(k[run.global_tokens])).transpose(0, 1).to(dq.dtype)
            dk.index_add_(0, run.global_tokens, (slope.mT @ asked).transpose(0, 1).to(dk.dtype))
            dv.index_add_(0, run.global_tokens, (weights.mT @ above).transpose(0, 1).to(dv.dtype))
        return torch.stack(local_grads, 1), None

    @cached_property
    def affected_sequences(self) -> list[int]:
        """The sequences that have anchors, and tokens that do not see them through their windows."""
        longer = (np.diff(self.cu_seqlens) > self.pattern.half_window + 1) | (self.pattern.dilation > 1)
        found: list[int] = np.flatnonzero(longer & (np.diff(self.cu_global) > 0)).tolist()
        return found

    @cached_property
    def by_direction(self) -> list[tuple["GlobalAttention", bool]]:
        """The same of anchors behind a token alone; then, if there are any, of those ahead, for which places are counted
        backwards. True is said of the first."""
        alone = replace(self.pattern, causal=True)
        found = [(replace(self, pattern=alone), True), (replace(self, pattern=alone, position=-self.position), False)]
        return found if self.has_global_ahead and not self.pattern.causal else found[:1]

    @cached_property
    def key_groups(self) -> list[GlobalKeyGroup]:
        starts, borders = self.cu_seqlens.tolist(), self.cu_global.tolist()
        return [
            self._build_key_group(slice(starts[a], starts[b]), slice(borders[a], borders[b]))
            for a, b in group_sequences(self.affected_sequences, borders, MAX_GLOBAL_PER_GROUP)
        ]

    def _build_key_group(self, token_slice: slice, global_slice: slice) -> GlobalKeyGroup:
        anchors = self.global_tokens[global_slice]
        behind = self.position[token_slice, None] - self.position[anchors]
        hidden = (self.seq_id[token_slice, None] != self.seq_id[anchors]) | self.pattern.in_window(behind)
        return GlobalKeyGroup(token_slice, anchors, hidden | (behind < 0) if self.pattern.causal else hidden)

    def _can_use_kernel(self, qkv: Tensor) -> bool:
        if not kernels.supports(qkv):
            return False
        from ...kernels.global_attention import supports_head_dim

        return supports_head_dim(qkv)

    @cached_property
    def _global_index(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        first = torch.from_numpy(self.cu_global).to(self.seq_id.device, non_blocking=True)
        return self.seq_id, self.position, self.global_tokens, first

    @property
    def _window_spec(self) -> tuple[int, int, bool]:
        return self.pattern.max_distance, self.pattern.dilation, self.pattern.causal


def _scores(q: Tensor, k: Tensor, group: GlobalKeyGroup, scale: float) -> Tensor:
    """(heads, tokens of the run, anchors)"""
    scores = _heads_first(q[group.token_slice]) @ _heads_first(k[group.global_tokens]).mT * scale
    return scores.masked_fill_(group.masked_out, float("-inf"))


def _heads_first(x: Tensor) -> Tensor:
    """(tokens, heads, width) -> (heads, tokens, width) in float32"""
    return x.transpose(0, 1).float() if x.dtype in FLASH_DTYPES else x.transpose(0, 1)
