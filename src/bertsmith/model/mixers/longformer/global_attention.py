"""Global attention of Longformer (Beltagy et al. 2020, section 3.1).

AttentionPattern is what a token attends to; GlobalAttention adds the global keys outside the window to the softmax of
all tokens; GlobalGroup and build_global_groups batch the global tokens' own queries with the tokens of their sequences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ... import kernels
from ...packing import FLASH_DTYPES, Layout

MAX_PADDING_RATIO = 2  # a padded batch may have at most so many times as many positions as there are tokens
MAX_GLOBAL_PER_GROUP = 64  # global keys per matrix product; those of other sequences are masked


@dataclass(frozen=True)
class AttentionPattern:
    """What a token attends to: `half_window` tokens on each side, `dilation` apart, and global tokens."""

    half_window: int
    dilation: int = 1
    causal: bool = False
    has_global_tokens: bool = False

    @property
    def max_distance(self) -> int:
        """Largest distance inside the window."""
        return self.half_window * self.dilation

    def in_window(self, distance: Tensor) -> Tensor:
        """Whether a key `distance` positions behind the query (ahead, if negative) is in its window."""
        in_range = (distance <= self.max_distance) & (distance >= (0 if self.causal else -self.max_distance))
        return in_range & (distance % self.dilation == 0)


@dataclass(frozen=True)
class GlobalKeyGroup:
    """Adjacent sequences whose tokens attend to all their global keys in one matrix product."""

    token_slice: slice
    global_tokens: Tensor  # (global tokens,): indices among all tokens
    masked_out: Tensor  # (tokens of the group, global tokens) bool: other sequence, inside the window, or future


@dataclass(frozen=True)
class GlobalAttention:
    """Attention of all tokens to the global tokens outside their windows; tokens may be in any order within a sequence."""

    pattern: AttentionPattern
    cu_seqlens: np.ndarray  # (sequences + 1,)
    seq_id: Tensor  # (tokens,)
    position: Tensor
    global_tokens: Tensor  # (global tokens,): indices among the tokens, grouped by sequence
    cu_global: np.ndarray  # (sequences + 1,): cumulative number of global tokens
    has_global_ahead: bool = True  # whether a token may have a global token ahead of it outside its window

    def merge(self, qkv: Tensor, out: Tensor, lse: Tensor, scale: float) -> None:
        """Adds the global keys to `out` (tokens, heads, head_dim) and `lse` (heads, tokens) of local attention, in place."""
        if self._can_use_kernel(qkv):
            from ...kernels.global_attention import merge_global_attention

            return merge_global_attention(qkv, out, lse, self._global_index, self._window_spec, scale)
        q, k, v = qkv.unbind(1)
        for group in self.key_groups:
            scores, local_lse = _scores(q, k, group, scale), lse[:, group.token_slice]
            merged_lse = torch.logaddexp(local_lse, scores.logsumexp(-1))
            global_out = (scores - merged_lse[..., None]).exp_() @ _heads_first(v[group.global_tokens])
            local_out = _heads_first(out[group.token_slice]) * (local_lse - merged_lse).exp_()[..., None]
            out[group.token_slice] = (local_out + global_out).transpose(0, 1).to(out.dtype)
            lse[:, group.token_slice] = merged_lse

    def backward(
        self, grad_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, local_grads: tuple[Tensor, Tensor, Tensor], scale: float,
        return_bias_grad: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Gradient of qkv, (tokens, 3, heads, head_dim): that of the local attention plus that of the global keys.

        With `return_bias_grad` also its sum over tokens, (3, heads, head_dim), if that is known without another pass.
        """
        if self._can_use_kernel(qkv) and not torch.are_deterministic_algorithms_enabled():
            from ...kernels.global_attention import merge_global_attention_backward

            grad_scores, partial_sums, global_kv_grads = merge_global_attention_backward(
                grad_out, qkv, out, lse, local_grads, self._global_index, self._window_spec, scale
            )
            grad_scores[:, 1:].index_add_(0, self.global_tokens, global_kv_grads.to(grad_scores.dtype))
            return grad_scores, partial_sums.sum(0) if return_bias_grad else None
        (q, k, v), (dq, dk, dv) = qkv.unbind(1), local_grads
        for group in self.key_groups:
            grad, queries = _heads_first(grad_out[group.token_slice]), _heads_first(q[group.token_slice])
            probs = (_scores(q, k, group, scale) - lse[:, group.token_slice, None]).exp_()
            grad_scores = grad @ _heads_first(v[group.global_tokens]).mT - (grad * _heads_first(out[group.token_slice])).sum(
                -1, keepdim=True
            )
            grad_scores = grad_scores * probs * scale
            dq[group.token_slice] += (grad_scores @ _heads_first(k[group.global_tokens])).transpose(0, 1).to(dq.dtype)
            dk.index_add_(0, group.global_tokens, (grad_scores.mT @ queries).transpose(0, 1).to(dk.dtype))
            dv.index_add_(0, group.global_tokens, (probs.mT @ grad).transpose(0, 1).to(dv.dtype))
        return torch.stack(local_grads, 1), None

    @cached_property
    def affected_sequences(self) -> list[int]:
        """Sequences with global tokens outside the window of some token."""
        has_outside = (np.diff(self.cu_seqlens) > self.pattern.half_window + 1) | (self.pattern.dilation > 1)
        sequences: list[int] = np.flatnonzero(has_outside & (np.diff(self.cu_global) > 0)).tolist()
        return sequences

    @cached_property
    def by_direction(self) -> list[tuple["GlobalAttention", bool]]:
        """The attention to global tokens behind the query (True), and to those ahead (False; positions negated), if any."""
        one_sided = replace(self.pattern, causal=True)
        directions = [
            (replace(self, pattern=one_sided), True),
            (replace(self, pattern=one_sided, position=-self.position), False),
        ]
        return directions if self.has_global_ahead and not self.pattern.causal else directions[:1]

    @cached_property
    def key_groups(self) -> list[GlobalKeyGroup]:
        cu_seqlens, cu_global = self.cu_seqlens.tolist(), self.cu_global.tolist()
        return [
            self._build_key_group(slice(cu_seqlens[a], cu_seqlens[b]), slice(cu_global[a], cu_global[b]))
            for a, b in group_sequences(self.affected_sequences, cu_global, MAX_GLOBAL_PER_GROUP)
        ]

    def _build_key_group(self, token_slice: slice, global_slice: slice) -> GlobalKeyGroup:
        global_tokens = self.global_tokens[global_slice]
        distance = self.position[token_slice, None] - self.position[global_tokens]
        masked_out = (self.seq_id[token_slice, None] != self.seq_id[global_tokens]) | self.pattern.in_window(distance)
        return GlobalKeyGroup(token_slice, global_tokens, masked_out | (distance < 0) if self.pattern.causal else masked_out)

    def _can_use_kernel(self, qkv: Tensor) -> bool:
        if not kernels.supports(qkv):
            return False
        from ...kernels.global_attention import supports_head_dim

        return supports_head_dim(qkv)

    @cached_property
    def _global_index(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        cu_global = torch.from_numpy(self.cu_global).to(self.seq_id.device, non_blocking=True)
        return self.seq_id, self.position, self.global_tokens, cu_global

    @property
    def _window_spec(self) -> tuple[int, int, bool]:
        return self.pattern.max_distance, self.pattern.dilation, self.pattern.causal


@dataclass(frozen=True)
class GlobalGroup:
    """Sequences whose global tokens attend together.

    Either adjacent sequences of the packed batch, or all sequences as a padded batch, each with its first token as global.
    """

    masked_out: Tensor  # (global tokens, tokens) or (sequences, 1, max_seqlen) bool: other sequence, or future
    token_slice: slice | None = None  # its tokens; None: the padded batch
    global_slice: slice | None = None  # its global tokens, among all global tokens

    def select_tokens(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, ..) -> (tokens of the group, ..) or (sequences, max_seqlen, ..)"""
        return layout.pad(x) if self.token_slice is None else x[self.token_slice]

    def select_global(self, rows: Tensor) -> Tensor:
        """(global tokens, ..) -> (global tokens of the group, ..) or (sequences, 1, ..)"""
        return rows[:, None] if self.global_slice is None else rows[self.global_slice]

    def group_tokens(self, x: Tensor, layout: Layout) -> Tensor:
        """(tokens, dim) -> (batch, tokens, dim): a batch of one for packed sequences, of all sequences if padded."""
        tokens = self.select_tokens(x, layout)
        return tokens if self.token_slice is None else tokens[None]

    def group_global(self, rows: Tensor) -> Tensor:
        """(heads, global tokens, dim) -> (batch, heads * global tokens of each, dim)"""
        return rows.transpose(0, 1) if self.global_slice is None else rows[:, self.global_slice].reshape(1, -1, rows.shape[-1])

    def ungroup_global(self, rows: Tensor, num_heads: int) -> Tensor:
        """Inverse of `group_global`: (heads, global tokens of this group, dim)."""
        return rows.transpose(0, 1) if self.global_slice is None else rows[0].unflatten(0, (num_heads, -1))

    def add_matmul(self, x: Tensor, left: Tensor, right: Tensor, layout: Layout) -> None:
        """x += left @ right, (batch, tokens, n) @ (batch, n, dim), for x (tokens, dim); in place where padding is a view."""
        if self.token_slice is None and not layout.pad_is_view:
            x += layout.unpad(left @ right)
        else:
            self.group_tokens(x, layout).baddbmm_(left, right)


def build_global_groups(layout: Layout, max_global: int, causal: bool = False) -> list[GlobalGroup]:
    """Groups of at most `max_global` global tokens, or of one sequence; or one padded batch, if only first tokens are global.

    A compiled graph cannot depend on the lengths: there, explicitly chosen global tokens are one group over all tokens.
    """
    is_compiling, num_tokens = torch.compiler.is_compiling(), layout.seq_id.shape[0]
    use_padded = (
        layout.num_sequences > max_global and layout.num_sequences * layout.max_seqlen <= MAX_PADDING_RATIO * num_tokens
    )  # for few sequences the copy costs more than it saves
    if layout.explicit_global_tokens is None and (is_compiling or use_padded):
        return [GlobalGroup(_padded_mask(layout, causal))]
    if is_compiling:
        return [_build_group(layout, slice(0, num_tokens), slice(0, layout.global_tokens.shape[0]), causal)]
    cu_seqlens, cu_global = _sequence_offsets(layout)
    sequences = [seq for seq in range(layout.num_sequences) if cu_global[seq] < cu_global[seq + 1]]
    slices = (
        (slice(cu_seqlens[a], cu_seqlens[b]), slice(cu_global[a], cu_global[b]))
        for a, b in group_sequences(sequences, cu_global, max_global)
    )
    return [_build_group(layout, *pair, causal) for pair in slices]


def group_sequences(sequences: Sequence[int], cu_global: Sequence[int], max_global: int) -> Iterator[tuple[int, int]]:
    """Yields (first, last + 1) of adjacent sequences that have at most `max_global` global tokens together.

    Those of sequence n are cu_global[n] to cu_global[n + 1]; a sequence with more than `max_global` is a group by itself.
    """
    begin = end = -1
    for seq in sequences:
        if begin >= 0 and (seq != end or cu_global[seq + 1] - cu_global[begin] > max_global):
            yield begin, end
            begin = -1
        begin, end = seq if begin < 0 else begin, seq + 1
    if begin >= 0:
        yield begin, end


def _sequence_offsets(layout: Layout) -> tuple[list[int], list[int]]:
    """cu_seqlens and the same of the global tokens, (sequences + 1,) each; computed on the host."""
    if layout.is_packed:
        cu_seqlens = np.concatenate([[0], np.array(layout.lengths.tolist(), np.int64).cumsum()])
    else:
        cu_seqlens = np.array(layout.cu_seqlens.tolist())
    global_tokens = (
        cu_seqlens[:-1] if layout.explicit_global_tokens is None else np.array(layout.explicit_global_tokens.tolist(), np.int64)
    )
    return cu_seqlens.tolist(), np.searchsorted(global_tokens, cu_seqlens).tolist()


def _build_group(layout: Layout, token_slice: slice, global_slice: slice, causal: bool) -> GlobalGroup:
    seq_id, position, global_tokens = layout.seq_id, layout.position, layout.global_tokens[global_slice]
    masked_out = seq_id[global_tokens][:, None] != seq_id[token_slice]
    return GlobalGroup(
        masked_out | (position[token_slice] > position[global_tokens][:, None]) if causal else masked_out,
        token_slice,
        global_slice,
    )


def _padded_mask(layout: Layout, causal: bool) -> Tensor:
    """(sequences, 1, max_seqlen) bool: True on padding, which has another sequence id, and on later positions if causal."""
    seq_id, position, first_token = layout.seq_id + 1, layout.position, layout.first_token
    masked_out = layout.pad(seq_id) != seq_id[first_token][:, None]
    return (masked_out | (layout.pad(position) > position[first_token][:, None]) if causal else masked_out)[:, None]


def _scores(q: Tensor, k: Tensor, group: GlobalKeyGroup, scale: float) -> Tensor:
    """(heads, tokens of the group, global tokens)"""
    scores = _heads_first(q[group.token_slice]) @ _heads_first(k[group.global_tokens]).mT * scale
    return scores.masked_fill_(group.masked_out, float("-inf"))


def _heads_first(x: Tensor) -> Tensor:
    """(tokens, heads, head_dim) -> (heads, tokens, head_dim), at least in float32"""
    return x.transpose(0, 1).float() if x.dtype in FLASH_DTYPES else x.transpose(0, 1)
