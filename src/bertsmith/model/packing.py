"""Where the sequences lie among the packed tokens, and how to attend within each of them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from . import kernels
from .positions import apply_rope

if TYPE_CHECKING:
    from .position_bias import PositionBias


FLASH_DTYPES = (torch.float16, torch.bfloat16)
Lengths = Sequence[int] | Tensor | NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Sequences one after another, with nothing between: `x` is (tokens, ...).

    Every tensor's size follows from the number of tokens and of sequences, so a compiled graph serves any lengths.
    """

    lengths: Tensor  # (sequences,), always on the host
    cu_seqlens: Tensor  # (sequences + 1,) int32: where each begins, and where the last ends
    seq_id: Tensor  # (tokens,): the sequence of each token; equal owners may see each other
    position: Tensor  # (tokens,): its position there
    max_seqlen: int
    prefix_lengths: Tensor | None = (
        None  # (sequences,), on the host: so many first tokens see each other where all else is causal
    )
    explicit_global_tokens: Tensor | None = (
        None  # (anchors,) in order, on the host: tokens that meet their whole sequence (Longformer)
    )

    @classmethod
    def from_lengths(
        cls, lengths: Lengths, prefix_lengths: Lengths | None = None, global_tokens: Lengths | None = None
    ) -> "Layout":
        sizes = np.asarray(lengths)  # numpy: torch's threads wait for each other, which costs more than it counts here
        starts = np.concatenate([[0], sizes.cumsum()])
        owner = np.arange(len(sizes)).repeat(sizes)
        place = np.arange(len(owner)) - starts[owner]
        tensor = torch.from_numpy
        more = (None if given is None else torch.as_tensor(given) for given in (prefix_lengths, global_tokens))
        return Layout(tensor(sizes), tensor(starts.astype(np.int32)), tensor(owner), tensor(place), int(sizes.max()), *more)

    is_packed = True  # what `starts` bounds is all real

    @property
    def num_sequences(self) -> int:
        return self.cu_seqlens.shape[0] - 1

    @property
    def first_token(self) -> Tensor:
        """(sequences,): the first token of each, where BERT keeps what it knows of the whole."""
        return cast(Tensor, self.memoize("firsts", lambda: self.cu_seqlens[:-1].long()))

    @property
    def last_token(self) -> Tensor:
        """(sequences,): the last token of each, where a causal model has read the whole."""
        return self.cu_seqlens[1:].long() - 1

    @property
    def global_tokens(self) -> Tensor:
        """(anchors,), beside the tokens: those that somebody chose, or else the first of each sequence."""
        if self.explicit_global_tokens is None:
            return self.first_token
        return cast(
            Tensor,
            self.memoize(
                "anchored", lambda: cast(Tensor, self.explicit_global_tokens).to(self.cu_seqlens.device, non_blocking=True)
            ),
        )

    def memoize(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """What a mixer finds out about this layout, for the layers above it too; a compiled graph finds it anew."""
        if torch.compiler.is_compiling():
            return compute()
        if key not in self._memo:
            with torch.inference_mode(False):  # it may serve training later
                self._memo[key] = compute()
        return self._memo[key]

    @cached_property
    def _memo(self) -> dict[Hashable, Any]:
        return {}

    @property
    def is_uniform(self) -> bool:
        """All of one length: the rectangle is a view."""
        return self.seq_id.shape[0] == self.num_sequences * self.max_seqlen

    @property
    def pad_is_view(self) -> bool:
        """Whether `grid` copies nothing."""
        return self.is_uniform

    def attend_qkv(
        self, qkv: Tensor, num_heads: int, cos_sin: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        position_bias: "PositionBias | None" = None,
    ) -> Tensor:  # fmt: skip
        """(tokens, 3 x width) -> (tokens, width): queries, keys and values side by side, turned by their places if `turns`
        are given (Rotary), their scores leaning on distance if `apart` is."""
        if cos_sin is not None:
            qkv = apply_rope(qkv, cos_sin, self.position, num_heads)
        if position_bias is not None:
            from .position_bias import attend_with_bias

            q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).unbind(-3)
            return attend_with_bias(q, k, v, self, position_bias, causal, dropout).flatten(-2)
        if self.is_packed and not dropout and self.prefix_lengths is None and kernels.supports(qkv):
            from .kernels.short_attention import HEAD_DIMS, MAX_SEQLEN, short_attention

            if self.max_seqlen <= MAX_SEQLEN and qkv.shape[1] // (3 * num_heads) in HEAD_DIMS:
                return short_attention(qkv, self.cu_seqlens, self.max_seqlen, num_heads, causal)
        q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).unbind(-3)
        return self.attend(q, k, v, causal=causal, dropout=dropout).flatten(-2)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0, keys: "Layout | None" = None
    ) -> Tensor:
        """(tokens, heads, width) three times in, once out; nothing crosses a border.

        With `keys`, k and v are of other sequences, as many as there are: each sequence sees the one of its number there.
        Flash attention drops nothing out: `dropout` on a GPU takes the padded rectangle instead, which is slower.
        """
        seen = self if keys is None else keys
        if causal and keys is None and self.prefix_lengths is not None:
            return self._attend_prefix_lm(q, k, v, dropout)
        if self.is_packed and q.is_cuda and q.dtype in FLASH_DTYPES and not dropout:
            from torch.nn.attention.varlen import varlen_attn

            sight = (-1, 0 if causal else -1)
            borders, longest = (self.cu_seqlens, seen.cu_seqlens), (self.max_seqlen, seen.max_seqlen)
            width = q.shape[-1]
            if gap := -width % 8:  # heads as the kernel wants them; zeros add nothing to a product
                q, k, v = (F.pad(t, (0, gap)) for t in (q, k, v))
            out = varlen_attn(q, k, v, *borders, *longest, window_size=sight, scale=width**-0.5)
            return cast(Tensor, out)[..., :width]
        if self.attends_per_sequence and not q.is_cuda:
            parts = (t[None].split(one.lengths.tolist(), dim=1) for t, one in ((q, self), (k, seen), (v, seen)))
            return torch.cat([_sdpa(q, k, v, causal, dropout)[0] for q, k, v in zip(*parts, strict=True)])
        mask = None if seen.is_uniform else seen.padding_mask()[:, None, None]
        return self.unpad(_sdpa(self.pad(q), seen.pad(k), seen.pad(v), causal, dropout, mask))

    def _attend_prefix_lm(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Prefixes see all of themselves, what follows sees all before it (UniLM, Dong et al. 2019).

        Flash attention in two calls: prefixes by themselves; what follows, causal over the whole of its sequence, the
        last query beside the last key.
        """
        if self.is_packed and q.is_cuda and q.dtype in FLASH_DTYPES and not dropout:
            (inside, prefixes), (behind, rests) = self._prefixes_and_rests
            out = torch.empty_like(v)
            if len(inside):
                out[inside] = prefixes.attend(q[inside], k[inside], v[inside])
            if len(behind):
                out[behind] = rests.attend(q[behind], k, v, causal=True, keys=self)
            return out
        prefix = cast(Tensor, self.prefix_lengths)
        if self.attends_per_sequence and not q.is_cuda:
            parts = (t[None].split(self.lengths.tolist(), dim=1) for t in (q, k, v))
            each = zip(*parts, prefix[:, None, None], strict=True)
            return torch.cat([_sdpa(q, k, v, False, dropout, prefix_lm_mask(q.shape[1], one))[0] for q, k, v, one in each])
        sight = prefix_lm_mask(self.max_seqlen, prefix.to(q.device)[:, None, None]) & self.padding_mask()[:, None]
        return self.unpad(_sdpa(self.pad(q), self.pad(k), self.pad(v), False, dropout, sight[:, None]))

    @cached_property
    def _prefixes_and_rests(self) -> list[tuple[Tensor, "Layout"]]:
        """Prefixes, and what follows them: which tokens they are, and how they lie by themselves; found on the host."""
        whole, prefix = Layout.from_lengths(self.lengths), cast(Tensor, self.prefix_lengths)
        inside, device = whole.position < prefix[whole.seq_id], self.cu_seqlens.device
        parts = ((inside, prefix), (~inside, self.lengths - prefix))
        return [(rows.nonzero().squeeze(1).to(device), Layout.from_lengths(sizes).to(device)) for rows, sizes in parts]

    @property
    def attends_per_sequence(self) -> bool:
        """On a CPU a call per sequence needs no mask, and beats the rectangle from 32 tokens a sequence up, or where it is
        more than half empty: one long text among many short ones."""
        if self.is_uniform or torch.compiler.is_compiling():  # a graph cannot depend on the lengths
            return False
        tokens = self.seq_id.shape[0]
        return tokens >= 32 * self.num_sequences or self.num_sequences * self.max_seqlen > 2 * tokens

    def pad(self, x: Tensor) -> Tensor:
        """(tokens, ...) -> (sequences, longest, ...), zero where a sequence is over."""
        if not self.is_uniform:
            empty = x.new_zeros(self.num_sequences * self.max_seqlen, *x.shape[1:])
            x = empty.index_copy(0, self.seq_id * self.max_seqlen + self.position, x)
        return x.unflatten(0, (self.num_sequences, self.max_seqlen))

    def unpad(self, padded: Tensor) -> Tensor:
        x = padded.flatten(0, 1)
        return x if self.is_uniform else x[self.seq_id * self.max_seqlen + self.position]

    def mean_pool(self, x: Tensor) -> Tensor:
        """(tokens, width) -> (sequences, width)"""
        return segment_means(x, self.seq_id, self.cu_seqlens.diff())

    def max_pool(self, x: Tensor) -> Tensor:
        """(tokens, width) -> (sequences, width): the largest of each number."""
        least = x.new_full((self.num_sequences, x.shape[1]), float("-inf"))
        return least.scatter_reduce(0, self.seq_id[:, None].expand_as(x), x, "amax")

    def padding_mask(self) -> Tensor:
        """(sequences, longest) bool: False where a sequence is over."""
        return torch.arange(self.max_seqlen, device=self.cu_seqlens.device) < self.cu_seqlens.diff()[:, None]

    def to(self, device: Any) -> Self:
        values = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("lengths", "prefix_lengths", "explicit_global_tokens")
        }
        moved: dict[str, Any] = {n: v.to(device, non_blocking=True) for n, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class PaddedLayout(Layout):
    """A padded batch, flattened: for callers who bring rectangles. Padding sees only padding."""

    attention_mask: Tensor  # (batch, length) bool: False on padding

    @classmethod
    def from_mask(cls, attention_mask: Tensor) -> "PaddedLayout":
        batch, length = attention_mask.shape
        row = torch.arange(batch, device=attention_mask.device)[:, None]
        owner = torch.where(attention_mask, row, row + batch).flatten()
        place = torch.arange(length, device=attention_mask.device).expand(batch, -1).flatten()
        starts = (torch.arange(batch + 1, device=attention_mask.device) * length).int()
        return PaddedLayout(attention_mask.sum(1), starts, owner, place, length, attention_mask=attention_mask)

    is_packed = is_uniform = attends_per_sequence = False
    pad_is_view = True

    def pad(self, x: Tensor) -> Tensor:
        return x.unflatten(0, self.attention_mask.shape)

    def unpad(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1)

    def padding_mask(self) -> Tensor:
        return self.attention_mask


def segment_means(x: Tensor, segment_ids: Tensor, counts: Tensor | None = None) -> Tensor:
    """(rows, width) -> (owners, width), each the mean of its rows; owners are numbered from 0, without a gap.

    `sizes` are how many rows each has: counting them makes a GPU wait.
    """
    counts = torch.bincount(segment_ids) if counts is None else counts
    sums = x.new_zeros(counts.shape[0], x.shape[1]).index_add(0, segment_ids, x)
    return sums / counts[:, None].to(x.dtype)


def prefix_lm_mask(length: int, prefix_lengths: Tensor) -> Tensor:
    """(..., length, length) bool, for prefixes (..., 1, 1): what each token sees."""
    place = torch.arange(length, device=prefix_lengths.device)
    return (place <= place[:, None]) | (place < prefix_lengths)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, mask: Tensor | None = None) -> Tensor:
    if mask is not None and causal:
        length = mask.shape[-1]
        mask, causal = mask & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril(), False
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=causal).transpose(1, 2)
