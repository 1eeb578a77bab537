"""Reformer's attention as published and as in Hugging Face: local or LSH attention over chunks of (sorted) tokens."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ....config import Config, NonNegInt, PosInt, Probability
from ....errors import UserError
from ...linear import Linear
from ...packing import Layout
from ..base import BaseMixerConfig, LayerState, Mixer
from .lsh import SELF_MASK_VALUE, LshHash, gather_tokens, invert_permutation, unit_norm

MASK_VALUE = -1e9  # less than SELF_MASK_VALUE, and finite


class ChunkConfig(Config, frozen=True):
    """Chunk length, and the number of neighbouring chunks that are attended to."""

    chunk_length: Annotated[PosInt, "tokens in a chunk"] = 64
    num_chunks_before: Annotated[NonNegInt, "chunks before its own that a token attends to"] = 1
    num_chunks_after: Annotated[NonNegInt, "chunks after its own that a token attends to"] = 0
    attention_dropout: Annotated[Probability, "dropout on attention weights"] = 0.0


class ReformerChunked(BaseMixerConfig, frozen=True, tag="reformer-chunked"):
    """Reformer as in Trax and Hugging Face, to load their models; prefer mixer=reformer for training.

    Tokens attend to their chunk and its neighbours whatever the bucket, a key found in two rounds counts twice, and chunk
    boundaries depend on all tokens: `causal` masks later tokens, but they still influence which earlier ones share a chunk.
    """

    num_attention_heads: Annotated[PosInt, "number of attention heads"] = 12
    attention_head_size: Annotated[PosInt | None, "size of each head; none: hidden_size / num_attention_heads"] = None
    attn_layers: Annotated[
        tuple[Literal["local", "lsh"], ...],
        Meta(min_length=1),
        "attention of each layer, repeated in turn if shorter than the layers",
    ] = ("local", "lsh")
    local: Annotated[ChunkConfig, "chunks of the local attention layers"] = ChunkConfig()
    lsh: Annotated[ChunkConfig, "chunks of the LSH attention layers"] = ChunkConfig()
    num_buckets: Annotated[
        PosInt | Annotated[tuple[PosInt, ...], Meta(min_length=1)], "hash buckets, an even number, or factors such as [16, 32]"
    ] = 64
    num_hashes: Annotated[PosInt, "hash rounds"] = 1
    seed: Annotated[NonNegInt, "seed of the hashes in evaluation; training draws new ones in each forward pass"] = 0
    causal: Annotated[bool, "attend only to earlier tokens (left to right)"] = False

    def for_layer(self, layer: int, num_layers: int) -> "ReformerChunked":
        """The config of one layer, local or LSH."""
        return msgspec.structs.replace(self, attn_layers=(self.attn_layers[layer % len(self.attn_layers)],))

    def build(self, hidden_size: int) -> Mixer:
        if self.attention_head_size is None and hidden_size % self.num_attention_heads:
            raise UserError(
                f"a hidden_size of {hidden_size} does not divide into {self.num_attention_heads} heads; "
                "set model.mixer.attention_head_size"
            )
        return (ChunkedLocalAttention if self.attn_layers[0] == "local" else ChunkedLshAttention)(
            self, hidden_size, self.attention_head_size or hidden_size // self.num_attention_heads
        )


class ChunkedLocalAttention(Mixer):
    """Attention to the own chunk of consecutive tokens and its neighbours."""

    def __init__(self, config: ReformerChunked, hidden_size: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.causal, self.chunk_config, inner_size = (
            config.num_attention_heads,
            config.causal,
            config.local,
            config.num_attention_heads * head_dim,
        )
        self.qkv, self.output = (
            Linear(hidden_size, 3 * inner_size, bias=False, num_parts=3),
            Linear(inner_size, hidden_size, bias=False),
        )

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        _reject_prefix(layout)
        projected = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        q, k, v = (t.transpose(0, 1) for t in projected)
        sorted_idx = layout.seq_id.argsort(stable=True).expand(1, self.num_heads, -1)
        lsh_chunks = LshChunks.from_layout(layout, self.chunk_config.chunk_length, 1)
        q, k, v = (gather_tokens(t, sorted_idx) for t in (q, k * q.shape[-1] ** -0.5, v))
        out, _ = _chunked_attention(self, lsh_chunks, q, k, v, sorted_idx, mask_self=False)
        return self.output(gather_tokens(out, invert_permutation(sorted_idx))[0].transpose(0, 1).flatten(1))


class ChunkedLshAttention(Mixer):
    """Attention to the own chunk of tokens sorted by hash bucket and its neighbours, over several hash rounds."""

    def __init__(self, config: ReformerChunked, hidden_size: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.causal, self.chunk_config, inner_size = (
            config.num_attention_heads,
            config.causal,
            config.lsh,
            config.num_attention_heads * head_dim,
        )
        self.num_hashes = config.num_hashes
        self.qkv, self.output = (
            Linear(hidden_size, 2 * inner_size, bias=False, num_parts=2),
            Linear(inner_size, hidden_size, bias=False),
        )
        buckets = config.num_buckets if isinstance(config.num_buckets, tuple) else (config.num_buckets,)
        self.hashes = LshHash(config.num_attention_heads, head_dim, config.num_hashes, buckets, config.seed)

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        _reject_prefix(layout)
        qk, v = (projected.transpose(0, 1) for projected in self.qkv(x).unflatten(-1, (2, self.num_heads, -1)).unbind(-3))
        sorted_idx = (layout.seq_id * self.hashes.num_buckets + self.hashes(qk)).argsort(dim=-1, stable=True)
        lsh_chunks = LshChunks.from_layout(layout, self.chunk_config.chunk_length, self.num_hashes)
        q, k, v = (gather_tokens(t, sorted_idx) for t in (qk, unit_norm(qk), v))
        round_outs, lse = _chunked_attention(self, lsh_chunks, q, k, v, sorted_idx, mask_self=True)
        inverse = invert_permutation(sorted_idx)
        weights = gather_tokens(lse, inverse).softmax(0)
        return self.output((weights.to(v.dtype) * gather_tokens(round_outs, inverse)).sum(0).transpose(0, 1).flatten(1))


@dataclass(frozen=True)
class LshChunks:
    """Chunks of the sorted tokens of packed sequences.

    Each sequence is cut from its own start, so other sequences in the batch do not change its chunks. Chunks are circular: the
    first chunk of a sequence follows the last one, and hash rounds follow one another. The number of chunks depends only on the
    numbers of tokens and sequences, so one compiled graph serves any lengths.
    """

    chunk_length: int
    seq_id: Tensor  # (tokens,), sorted
    lengths: Tensor  # (sequence ids,): tokens of each
    num_hashes: int

    @classmethod
    def from_layout(cls, layout: Layout, chunk_length: int, num_hashes: int) -> "LshChunks":
        num_ids = layout.num_sequences * (1 if layout.is_packed else 2)  # padding has ids of its own
        lengths = torch.zeros(num_ids, dtype=torch.long, device=layout.seq_id.device)
        lengths = lengths.index_add(0, layout.seq_id, torch.ones_like(layout.seq_id))
        return cls(chunk_length, layout.seq_id.sort(stable=True).values, lengths, num_hashes)

    @property
    def chunks_per_round(self) -> int:
        """Chunks of one hash round."""
        return self.seq_id.shape[0] // self.chunk_length + self.lengths.shape[0]

    @property
    def chunks_per_seq(self) -> Tensor:
        """(sequence ids,): chunks of each, at least one."""
        return ((self.lengths + self.chunk_length - 1) // self.chunk_length).clamp(min=1)

    @property
    def token_slots(self) -> Tensor:
        """(tokens,): the slot, chunk * chunk_length + offset, of each token of a round, sorted by sequence."""
        first_token, first_chunk = self.lengths.cumsum(0) - self.lengths, self.chunks_per_seq.cumsum(0) - self.chunks_per_seq
        position = torch.arange(self.seq_id.shape[0], device=self.seq_id.device) - first_token[self.seq_id]
        return first_chunk[self.seq_id] * self.chunk_length + position

    def to_chunks(self, x: Tensor, pad_value: int = 0) -> Tensor:
        """(num_hashes, heads, tokens, ...) -> (heads, num_hashes * chunks, chunk_length, ...)"""
        slots = x.new_full((*x.shape[:2], self.chunks_per_round * self.chunk_length, *x.shape[3:]), pad_value)
        return (
            slots.index_copy(2, self.token_slots, x)
            .transpose(0, 1)
            .unflatten(2, (self.chunks_per_round, self.chunk_length))
            .flatten(1, 2)
        )

    def from_chunks(self, x: Tensor) -> Tensor:
        """Inverse of `to_chunks`."""
        return (
            x.unflatten(1, (self.num_hashes, self.chunks_per_round))
            .flatten(2, 3)
            .transpose(0, 1)
            .index_select(2, self.token_slots)
        )

    def look_adjacent(self, x: Tensor, num_before: int, num_after: int) -> Tensor:
        """(heads, num_hashes * chunks, chunk_length, ...): each chunk with its neighbours, circular per sequence."""
        return torch.cat(
            [
                x if offset == 0 else x.index_select(1, self._neighbor_index(offset))
                for offset in range(-num_before, num_after + 1)
            ],
            2,
        )

    def _neighbor_index(self, offset: int) -> Tensor:
        """(num_hashes * chunks,): for each chunk the index of the one `offset` after it."""
        ends = self.chunks_per_seq.cumsum(0)
        chunk = torch.arange(self.chunks_per_round, device=ends.device)
        seq_id = torch.searchsorted(ends, chunk, right=True).clamp(max=ends.shape[0] - 1)
        num_chunks, first_chunk = self.chunks_per_seq[seq_id], (ends - self.chunks_per_seq)[seq_id]
        hash_round = torch.arange(self.num_hashes, device=ends.device)[:, None]
        index = (hash_round * num_chunks + chunk - first_chunk + offset) % (self.num_hashes * num_chunks)
        return (
            index // num_chunks * self.chunks_per_round
            + (first_chunk + index % num_chunks).clamp(max=self.chunks_per_round - 1)
        ).flatten()


def _chunked_attention(
    mixer: ChunkedLocalAttention | ChunkedLshAttention,
    lsh_chunks: LshChunks,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sorted_idx: Tensor,
    mask_self: bool,
) -> tuple[Tensor, Tensor]:
    """Attention of sorted tokens, (num_hashes, heads, tokens, head_dim), over their chunk and its neighbours; and the lse.

    mask_self: a token attends to itself only if there is no other key.
    """
    config = mixer.chunk_config
    query_idx = lsh_chunks.to_chunks(sorted_idx, -1)
    k, v, key_idx = (
        lsh_chunks.look_adjacent(t, config.num_chunks_before, config.num_chunks_after)
        for t in (lsh_chunks.to_chunks(k), lsh_chunks.to_chunks(v), query_idx)
    )
    query_idx, key_idx = query_idx[..., None], key_idx[..., None, :]
    scores = (lsh_chunks.to_chunks(q) @ k.mT).float()
    # Within a sequence, index order is position order.
    masked_out = (key_idx < 0) | (key_idx > query_idx) if mixer.causal else key_idx < 0
    scores = scores.masked_fill(masked_out, MASK_VALUE)
    scores = scores.masked_fill(query_idx == key_idx, SELF_MASK_VALUE) if mask_self else scores
    probs = F.dropout(scores.softmax(-1), config.attention_dropout, mixer.training)
    return lsh_chunks.from_chunks(probs.to(v.dtype) @ v), lsh_chunks.from_chunks(scores.logsumexp(-1, keepdim=True))


def _reject_prefix(layout: Layout) -> None:
    if layout.prefix_lengths is not None:
        raise UserError(
            "mixer=reformer-chunked does not support prefix LM attention (bidirectional prefixes, UniLM); use mixer=attention"
        )
