"""Reformer's LSH attention: a token attends to the nearest tokens of its hash bucket, over several hash rounds."""

from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ....config import NonNegInt, PosInt
from ....errors import UserError
from ...linear import Linear
from ...packing import Layout
from ..base import BaseMixerConfig, LayerState, Mixer, masked_softmax
from .lsh import SELF_MASK_VALUE, LshHash, invert_permutation, lsh_attention, unit_norm


class Reformer(BaseMixerConfig, frozen=True, tag="reformer"):
    """Reformer (Kitaev et al. 2020): LSH attention over tokens in the same hash bucket.

    Queries and keys share one projection, and keys are normalized to unit length.
    """

    num_attention_heads: Annotated[PosInt, "number of attention heads"] = 12
    num_buckets: Annotated[
        PosInt | Annotated[tuple[PosInt, ...], Meta(min_length=1)],
        "hash buckets, an even number, or factors such as [16, 32]; 1: full attention",
    ] = 64
    num_hashes: Annotated[PosInt, "hash rounds; more miss fewer similar tokens (8: nearly full attention in the paper)"] = 4
    bucket_window: Annotated[PosInt, "tokens of its own bucket that a token attends to, on each side"] = 64
    causal: Annotated[bool, "attend only to earlier tokens (left to right)"] = False
    seed: Annotated[NonNegInt, "seed of the hashes in evaluation; training draws new ones in each forward pass"] = 0
    bias: Annotated[bool, "bias terms in the linear layers"] = True

    def build(self, hidden_size: int) -> Mixer:
        return ReformerAttention(self, hidden_size)


class ReformerAttention(Mixer):
    """Banded attention over the tokens sorted by (sequence, bucket, position), in which a bucket is contiguous.

    The paper cuts the sorted tokens into chunks, whose boundaries depend on the other sequences of a packed batch and on future
    tokens. The band counts only tokens of the same bucket: the same result packed or not, and strictly causal. Its blocks
    attend to themselves and their neighbours, as the paper's chunks do, so the cost is the same.
    """

    def __init__(self, config: Reformer, hidden_size: int) -> None:
        super().__init__()
        if hidden_size % config.num_attention_heads:
            raise UserError(f"a hidden_size of {hidden_size} does not divide into {config.num_attention_heads} heads; try "
                           f"model.mixer.num_attention_heads={max(1, hidden_size // 64)}")  # fmt: skip
        self.config, self.head_dim = config, hidden_size // config.num_attention_heads
        self.qkv, self.output = (
            Linear(hidden_size, 2 * hidden_size, bias=config.bias, num_parts=2),
            Linear(hidden_size, hidden_size, bias=config.bias),
        )
        buckets = config.num_buckets if isinstance(config.num_buckets, tuple) else (config.num_buckets,)
        self.hashes = (
            LshHash(config.num_attention_heads, self.head_dim, config.num_hashes, buckets, config.seed)
            if buckets != (1,)
            else None
        )

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        if layout.prefix_lengths is not None:
            raise UserError(
                "mixer=reformer does not support prefix LM attention (bidirectional prefixes, UniLM); use mixer=attention"
            )
        qk, v = self.qkv(x).unflatten(-1, (2, self.config.num_attention_heads, -1)).unbind(-3)  # (tokens, heads, head_dim)
        out = self._full_attention(qk, v, layout) if self.hashes is None else self._lsh_attention(qk, v, layout)
        return self.output(out.flatten(1))

    def attention_weights(self, x: Tensor, layout: Layout) -> Tensor:
        """Over the neighbours of all hash rounds, each counted once."""
        qk = self.qkv(x).unflatten(-1, (2, self.config.num_attention_heads, -1)).unbind(-3)[0]
        q, k = (layout.pad(t).transpose(1, 2) for t in (qk, unit_norm(qk)))
        is_self = torch.eye(layout.max_seqlen, dtype=torch.bool, device=x.device)
        scores = (q @ k.mT).float().masked_fill(is_self, SELF_MASK_VALUE)
        mask = layout.padding_mask()[:, None, None]
        if self.config.causal:
            mask = mask & torch.ones_like(is_self).tril()
        if self.hashes is not None:
            rank = self.sort_by_bucket(qk.transpose(0, 1), layout)[1]  # (num_hashes, heads, tokens)
            rank = layout.pad(rank.permute(2, 0, 1)).permute(0, 2, 3, 1)  # (sequences, num_hashes, heads, max_seqlen)
            mask = mask & ((rank[..., :, None] - rank[..., None, :]).abs() <= self.config.bucket_window).any(1)
        return masked_softmax(scores, mask)

    def _full_attention(self, qk: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """One bucket: full attention, each token masked from itself unless it is alone."""
        self_mask = torch.full(
            (layout.max_seqlen,), max(SELF_MASK_VALUE, torch.finfo(v.dtype).min / 2), device=v.device, dtype=v.dtype
        ).diag()
        mask = layout.padding_mask()[:, None, None]
        if self.config.causal:
            mask = mask & torch.ones_like(self_mask, dtype=torch.bool).tril()
        q, k, v = (layout.pad(t).transpose(1, 2) for t in (qk, unit_norm(qk), v))
        attn_bias = self_mask.expand(q.shape[0], 1, -1, -1).masked_fill(~mask, float("-inf"))
        return layout.unpad(F.scaled_dot_product_attention(q, k, v, attn_bias, scale=1.0).transpose(1, 2))

    def _lsh_attention(self, qk: Tensor, v: Tensor, layout: Layout) -> Tensor:
        qk, v = qk.transpose(0, 1), v.transpose(0, 1)
        round_outs, lse = lsh_attention(
            qk, unit_norm(qk), v, *self.sort_by_bucket(qk, layout), self.config.bucket_window, self.config.causal
        )
        return (lse.softmax(0)[..., None].to(v.dtype) * round_outs).sum(0).transpose(0, 1)

    def sort_by_bucket(self, qk: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """(num_hashes, heads, tokens) each: the permutation that sorts the tokens by bucket, and the bucket rank of each token.

        Bucket ranks of two tokens differ by at most `config.bucket_window` exactly if they are that near in the same bucket.
        """
        bucket_ids = self._bucket_ids(qk, layout)
        sorted_idx = bucket_ids.argsort(dim=-1, stable=True)
        return sorted_idx, (invert_permutation(sorted_idx) + bucket_ids * (self.config.bucket_window + 1)).to(bucket_ids.dtype)

    def _bucket_ids(self, qk: Tensor, layout: Layout) -> Tensor:
        """(num_hashes, heads, tokens): one id per sequence and bucket."""
        assert self.hashes is not None
        buckets = self.hashes(qk)
        if not self.config.causal:  # a short sequence is one bucket: full attention costs no more
            buckets = buckets.masked_fill(
                layout.memoize(("short", self.config.bucket_window), lambda: self._is_short_sequence(layout)), 0
            )
        max_rank = layout.seq_id.shape[0] + 2 * layout.num_sequences * self.hashes.num_buckets * (self.config.bucket_window + 2)
        # int32 sorts faster.
        return (layout.seq_id * self.hashes.num_buckets + buckets).to(torch.int32 if max_rank < 2**31 else torch.int64)

    def _is_short_sequence(self, layout: Layout) -> Tensor:
        """(tokens,) bool: whether the token's sequence fits into the window of each of its tokens."""
        # Twice as many ids as sequences: the padding of a padded batch has ids of its own.
        lengths = torch.zeros(2 * layout.num_sequences, dtype=torch.long, device=layout.seq_id.device)
        return (
            lengths.index_add(0, layout.seq_id, torch.ones_like(layout.seq_id))[layout.seq_id] <= self.config.bucket_window + 1
        )
