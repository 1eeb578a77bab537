"""`Layout`: sequences packed without padding (varlen), and attention within each of them.

`Layout` holds cu_seqlens, the sequence id and the position of every token, pads and unpads, pools, and dispatches attention
to flash-attention kernels (GPU) or SDPA. `PaddedLayout` is the same for a padded batch with an attention mask.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..device import copy_to_device
from . import kernels
from .positions import apply_rope

if TYPE_CHECKING:
    from .position_bias import PositionBias


FLASH_DTYPES = (torch.float16, torch.bfloat16)
Lengths = Sequence[int] | Tensor | NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Layout of a packed batch: tensors are (tokens, ...), all sequences concatenated without padding.

    Every tensor's size depends only on the number of tokens and of sequences, so one compiled graph serves any lengths.
    """

    lengths: Tensor  # (sequences,) int64, always on the CPU
    cu_seqlens: Tensor  # (sequences + 1,) int32: cumulative lengths, from 0
    seq_id: Tensor  # (tokens,): sequence of each token; tokens attend within one seq_id
    position: Tensor  # (tokens,): position of each token in its sequence
    max_seqlen: int
    # (sequences,), on the CPU: under causal attention the first so many tokens attend to each other (prefix LM)
    prefix_lengths: Tensor | None = None
    # (global tokens,), sorted, on the CPU: tokens with global attention (Longformer); None: the first of each sequence
    explicit_global_tokens: Tensor | None = None
    # (sequences,), on the CPU: tokens of each sequence before these, held by a KV cache; positions count from there
    past_lengths: Tensor | None = None

    @classmethod
    def from_lengths(
        cls,
        lengths: Lengths,
        prefix_lengths: Lengths | None = None,
        global_tokens: Lengths | None = None,
        past_lengths: Lengths | None = None,
    ) -> "Layout":
        seq_lengths = np.asarray(lengths)  # numpy: synchronizing torch's threads costs more than this arithmetic
        cu_seqlens = np.concatenate([[0], seq_lengths.cumsum()])
        seq_id = np.arange(len(seq_lengths)).repeat(seq_lengths)
        position = np.arange(len(seq_id)) - cu_seqlens[seq_id]
        if past_lengths is not None:
            position += np.asarray(past_lengths)[seq_id]
        to_tensor = torch.from_numpy
        optional_fields = (
            None if values is None else torch.as_tensor(values) for values in (prefix_lengths, global_tokens, past_lengths)
        )
        return Layout(
            to_tensor(seq_lengths),
            to_tensor(cu_seqlens.astype(np.int32)),
            to_tensor(seq_id),
            to_tensor(position),
            int(seq_lengths.max()),
            *optional_fields,
        )

    @classmethod
    def next_tokens(cls, past_lengths: Tensor, position: Tensor) -> "Layout":
        """One token for each sequence, after its `past_lengths` (on the CPU); `position` holds the same on the device."""
        num_sequences, device = past_lengths.shape[0], position.device
        cu_seqlens = torch.arange(num_sequences + 1, dtype=torch.int32, device=device)
        seq_id = torch.arange(num_sequences, device=device)
        return Layout(torch.ones_like(past_lengths), cu_seqlens, seq_id, position, 1, past_lengths=past_lengths)

    is_packed = True  # no padding between cu_seqlens

    @property
    def num_sequences(self) -> int:
        return self.cu_seqlens.shape[0] - 1

    @property
    def num_positions(self) -> int:
        """One more than the largest position."""
        return self.max_seqlen if self.past_lengths is None else self._position_range[1]

    def is_at_most(self, length: int) -> bool:
        """Whether no sequence is longer."""
        return self.max_seqlen <= length

    @cached_property
    def is_aligned(self) -> bool:
        """Whether all sequences have the same length and the same past length, so that they have the same positions."""
        return self.is_uniform and (self.past_lengths is None or self._position_range[0] == self.num_positions)

    @cached_property
    def _position_range(self) -> tuple[int, int]:
        """Least and greatest total length of a sequence, past tokens included."""
        totals = self.lengths if self.past_lengths is None else self.lengths + self.past_lengths
        return int(totals.min()), int(totals.max())

    @property
    def first_token(self) -> Tensor:
        """(sequences,): index of the first token of each sequence, [CLS] in BERT."""
        return cast(Tensor, self.memoize("first_token", lambda: self.cu_seqlens[:-1].long()))

    @property
    def last_token(self) -> Tensor:
        """(sequences,): index of the last token of each sequence, the one that attends to all of it in a causal model."""
        return self.cu_seqlens[1:].long() - 1

    @property
    def global_tokens(self) -> Tensor:
        """(global tokens,), on the device: the explicit ones, or else the first token of each sequence."""
        if self.explicit_global_tokens is None:
            return self.first_token
        return cast(
            Tensor,
            self.memoize(
                "global_tokens", lambda: cast(Tensor, self.explicit_global_tokens).to(self.cu_seqlens.device, non_blocking=True)
            ),
        )

    def memoize(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Compute once per layout and share between layers; in a compiled graph, compute every time."""
        if torch.compiler.is_compiling():
            return compute()
        if key not in self._memo:
            with torch.inference_mode(False):  # it may be reused in training
                self._memo[key] = compute()
        return self._memo[key]

    @cached_property
    def _memo(self) -> dict[Hashable, Any]:
        return {}

    @property
    def is_uniform(self) -> bool:
        """Whether all sequences have the same length: `pad` is then a view."""
        return self.seq_id.shape[0] == self.num_sequences * self.max_seqlen

    @property
    def pad_is_view(self) -> bool:
        """Whether `pad` makes no copy."""
        return self.is_uniform

    def attend_qkv(
        self, qkv: Tensor, num_heads: int, cos_sin: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        position_bias: "PositionBias | None" = None,
    ) -> Tensor:  # fmt: skip
        """Self-attention: (tokens, 3 * hidden_size) queries, keys and values side by side -> (tokens, hidden_size).

        `cos_sin` (RotaryEmbedding.cos_sin) rotates queries and keys by position; `position_bias` is added to the scores.
        """
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
        """softmax(q k^T / sqrt(head_dim)) v within each sequence; q, k, v and the result: (tokens, heads, head_dim).

        With `keys`, k and v belong to that layout (cross-attention): sequence i attends to sequence i of `keys`.
        Flash attention has no dropout: on a GPU, `dropout` takes the slower padded path.
        """
        key_layout = self if keys is None else keys
        if causal and keys is None and self.prefix_lengths is not None:
            return self._attend_prefix_lm(q, k, v, dropout)
        if self.is_packed and q.is_cuda and q.dtype in FLASH_DTYPES and not dropout:
            from torch.nn.attention.varlen import varlen_attn

            window_size = (-1, 0 if causal else -1)
            cu_seqlens, max_seqlens = (self.cu_seqlens, key_layout.cu_seqlens), (self.max_seqlen, key_layout.max_seqlen)
            head_dim = q.shape[-1]
            if padding := -head_dim % 8:  # the kernel needs a multiple of 8; zeros do not change the product
                q, k, v = (F.pad(tensor, (0, padding)) for tensor in (q, k, v))
            out = varlen_attn(q, k, v, *cu_seqlens, *max_seqlens, window_size=window_size, scale=head_dim**-0.5)
            return cast(Tensor, out)[..., :head_dim]
        if self.attends_per_sequence and not q.is_cuda:
            per_sequence = (
                tensor[None].split(layout.lengths.tolist(), dim=1)
                for tensor, layout in ((q, self), (k, key_layout), (v, key_layout))
            )
            return torch.cat([_sdpa(q, k, v, causal, dropout)[0] for q, k, v in zip(*per_sequence, strict=True)])
        mask = None if key_layout.is_uniform else key_layout.padding_mask()[:, None, None]
        return self.unpad(_sdpa(self.pad(q), key_layout.pad(k), key_layout.pad(v), causal, dropout, mask))

    def _attend_prefix_lm(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Prefix LM attention: bidirectional within the prefix, causal after it (UniLM, Dong et al. 2019).

        With flash attention in two calls: the prefixes alone; then the suffixes, causal over their whole sequence with
        the last query aligned to the last key.
        """
        if self.is_packed and q.is_cuda and q.dtype in FLASH_DTYPES and not dropout:
            (prefix_tokens, prefix_layout), (suffix_tokens, suffix_layout) = self._prefixes_and_suffixes
            out = torch.empty_like(v)
            if len(prefix_tokens):
                out[prefix_tokens] = prefix_layout.attend(q[prefix_tokens], k[prefix_tokens], v[prefix_tokens])
            if len(suffix_tokens):
                out[suffix_tokens] = suffix_layout.attend(q[suffix_tokens], k, v, causal=True, keys=self)
            return out
        prefix_lengths = cast(Tensor, self.prefix_lengths)
        if self.attends_per_sequence and not q.is_cuda:
            per_sequence = (tensor[None].split(self.lengths.tolist(), dim=1) for tensor in (q, k, v))
            sequences = zip(*per_sequence, prefix_lengths[:, None, None], strict=True)
            return torch.cat(
                [
                    _sdpa(q, k, v, False, dropout, prefix_lm_mask(q.shape[1], prefix_length))[0]
                    for q, k, v, prefix_length in sequences
                ]
            )
        mask = prefix_lm_mask(self.max_seqlen, prefix_lengths.to(q.device)[:, None, None]) & self.padding_mask()[:, None]
        return self.unpad(_sdpa(self.pad(q), self.pad(k), self.pad(v), False, dropout, mask[:, None]))

    @cached_property
    def _prefixes_and_suffixes(self) -> list[tuple[Tensor, "Layout"]]:
        """Token indices and layout of the prefixes, and of the suffixes; computed on the CPU."""
        layout, prefix_lengths = Layout.from_lengths(self.lengths), cast(Tensor, self.prefix_lengths)
        in_prefix, device = layout.position < prefix_lengths[layout.seq_id], self.cu_seqlens.device
        parts = ((in_prefix, prefix_lengths), (~in_prefix, self.lengths - prefix_lengths))
        return [
            (is_member.nonzero().squeeze(1).to(device), Layout.from_lengths(lengths).to(device)) for is_member, lengths in parts
        ]

    @property
    def attends_per_sequence(self) -> bool:
        """Whether to call SDPA once per sequence on a CPU: needs no mask, and is faster than the padded batch from 32 tokens
        per sequence on average, or where more than half of the batch would be padding."""
        if self.is_uniform or torch.compiler.is_compiling():  # a compiled graph cannot depend on the lengths
            return False
        tokens = self.seq_id.shape[0]
        return tokens >= 32 * self.num_sequences or self.num_sequences * self.max_seqlen > 2 * tokens

    def pad(self, x: Tensor) -> Tensor:
        """(tokens, ...) -> (sequences, max_seqlen, ...), zeros as padding."""
        if not self.is_uniform:
            padded = x.new_zeros(self.num_sequences * self.max_seqlen, *x.shape[1:])
            x = padded.index_copy(0, self._padded_row, x)
        return x.unflatten(0, (self.num_sequences, self.max_seqlen))

    def unpad(self, padded: Tensor) -> Tensor:
        """(sequences, max_seqlen, ...) -> (tokens, ...)."""
        x = padded.flatten(0, 1)
        return x if self.is_uniform else x[self._padded_row]

    @property
    def _padded_row(self) -> Tensor:
        """(tokens,): row of each token in a padded batch."""
        if self.past_lengths is None:
            return self.seq_id * self.max_seqlen + self.position
        return self.seq_id * self.max_seqlen + self.position - self.past_lengths.to(self.position.device)[self.seq_id]

    def mean_pool(self, x: Tensor) -> Tensor:
        """(tokens, hidden_size) -> (sequences, hidden_size): mean of each sequence."""
        return segment_means(x, self.seq_id, self.cu_seqlens.diff())

    def broadcast(self, x: Tensor) -> Tensor:
        """(sequences, ...) -> (tokens, ...): every token gets the row of its sequence."""
        return x[self.seq_id]

    def max_pool(self, x: Tensor) -> Tensor:
        """(tokens, hidden_size) -> (sequences, hidden_size): element-wise maximum of each sequence."""
        lowest = x.new_full((self.num_sequences, x.shape[1]), float("-inf"))
        return lowest.scatter_reduce(0, self.seq_id[:, None].expand_as(x), x, "amax")

    def padding_mask(self) -> Tensor:
        """(sequences, max_seqlen) bool: False on padding."""
        return torch.arange(self.max_seqlen, device=self.cu_seqlens.device) < self.cu_seqlens.diff()[:, None]

    def to(self, device: Any) -> Self:
        values = {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if spec.name not in ("lengths", "prefix_lengths", "explicit_global_tokens", "past_lengths")
        }
        moved_tensors: dict[str, Any] = {
            name: copy_to_device(value, device) for name, value in values.items() if isinstance(value, Tensor)
        }
        return replace(self, **moved_tensors)


@dataclass(frozen=True, kw_only=True)
class PaddedLayout(Layout):
    """A padded batch, flattened to (batch * length, ...), for callers with padded inputs. Padding attends only to padding."""

    attention_mask: Tensor  # (batch, length) bool: False on padding

    @classmethod
    def from_mask(cls, attention_mask: Tensor) -> "PaddedLayout":
        batch, length = attention_mask.shape
        row = torch.arange(batch, device=attention_mask.device)[:, None]
        seq_id = torch.where(attention_mask, row, row + batch).flatten()
        position = torch.arange(length, device=attention_mask.device).expand(batch, -1).flatten()
        cu_seqlens = (torch.arange(batch + 1, device=attention_mask.device) * length).int()
        return PaddedLayout(attention_mask.sum(1), cu_seqlens, seq_id, position, length, attention_mask=attention_mask)

    is_packed = is_uniform = attends_per_sequence = False
    pad_is_view = True

    def pad(self, x: Tensor) -> Tensor:
        return x.unflatten(0, self.attention_mask.shape)

    def unpad(self, padded: Tensor) -> Tensor:
        return padded.flatten(0, 1)

    def padding_mask(self) -> Tensor:
        return self.attention_mask

    @property
    def last_token(self) -> Tensor:
        return self.first_token + self.attention_mask.sum(1) - 1

    def mean_pool(self, x: Tensor) -> Tensor:
        mask = self.attention_mask[..., None].to(x.dtype)
        return (self.pad(x) * mask).sum(1) / mask.sum(1)

    def broadcast(self, x: Tensor) -> Tensor:
        return self.unpad(x[:, None].expand(-1, self.attention_mask.shape[1], *x.shape[1:]))

    def max_pool(self, x: Tensor) -> Tensor:
        return self.pad(x).masked_fill(~self.attention_mask[..., None], float("-inf")).amax(1)


def segment_means(x: Tensor, segment_ids: Tensor, counts: Tensor | None = None) -> Tensor:
    """(rows, hidden_size) -> (segments, hidden_size): mean of the rows of each segment id (0, 1, 2 .. without a gap).

    `counts` (segments,): rows of each segment, if known; counting them synchronizes a GPU.
    """
    counts = torch.bincount(segment_ids) if counts is None else counts
    sums = x.new_zeros(counts.shape[0], x.shape[1]).index_add(0, segment_ids, x)
    return sums / counts[:, None].to(x.dtype)


def prefix_lm_mask(length: int, prefix_lengths: Tensor) -> Tensor:
    """(..., length, length) bool: whether query i may attend to key j, j <= i or j < prefix; prefix_lengths: (..., 1, 1)."""
    position = torch.arange(length, device=prefix_lengths.device)
    return (position <= position[:, None]) | (position < prefix_lengths)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, mask: Tensor | None = None) -> Tensor:
    """Scaled dot-product attention on (sequences, length, heads, head_dim); mask broadcasts to (.., queries, keys)."""
    if mask is not None and causal:
        length = mask.shape[-1]
        mask, causal = mask & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril(), False
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=causal).transpose(1, 2)
