"""Sequences cut in chunks that lie in rings: the first has the last before it, and rounds follow one another."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ....config import Config, NonNegInt, PosInt, Probability, Variant
from ....errors import UserError
from ...packing import Layout
from ..base import Mixer
from .lsh import SELF_MASK_VALUE, LshHash, gather_tokens, invert_permutation, unit_norm


@dataclass(frozen=True)
class LshChunks:
    """Every sequence is cut from its own beginning, so what is packed beside it changes nothing.

    There are as many chunks as any sequences of so many tokens may need, and a compiled graph serves any lengths.
    """

    chunk_length: int
    seq_id: Tensor  # (tokens,) in order
    lengths: Tensor  # (owners,): tokens of each
    num_hashes: int

    @classmethod
    def from_layout(cls, layout: Layout, chunk_length: int, num_hashes: int) -> "LshChunks":
        owners = layout.num_sequences * (1 if layout.is_packed else 2)  # padding of a row owns itself
        sizes = torch.zeros(owners, dtype=torch.long, device=layout.seq_id.device)
        sizes = sizes.index_add(0, layout.seq_id, torch.ones_like(layout.seq_id))
        return cls(chunk_length, layout.seq_id.sort(stable=True).values, sizes, num_hashes)

    @property
    def chunks_per_round(self) -> int:
        """Chunks of a round."""
        return self.seq_id.shape[0] // self.chunk_length + self.lengths.shape[0]

    @property
    def chunks_per_seq(self) -> Tensor:
        """(owners,): chunks of each, one at least."""
        return ((self.lengths + self.chunk_length - 1) // self.chunk_length).clamp(min=1)

    @property
    def token_slots(self) -> Tensor:
        """(tokens,): where those of a round, sorted by owner, lie in its chunks."""
        before, chunks = self.lengths.cumsum(0) - self.lengths, self.chunks_per_seq.cumsum(0) - self.chunks_per_seq
        place = torch.arange(self.seq_id.shape[0], device=self.seq_id.device) - before[self.seq_id]
        return chunks[self.seq_id] * self.chunk_length + place

    def to_chunks(self, x: Tensor, pad_value: int = 0) -> Tensor:
        """(rounds, heads, tokens, ...) to (heads, rounds x chunks, chunk, ...)"""
        room = x.new_full((*x.shape[:2], self.chunks_per_round * self.chunk_length, *x.shape[3:]), pad_value)
        return (
            room.index_copy(2, self.token_slots, x)
            .transpose(0, 1)
            .unflatten(2, (self.chunks_per_round, self.chunk_length))
            .flatten(1, 2)
        )

    def from_chunks(self, x: Tensor) -> Tensor:
        """And back."""
        return (
            x.unflatten(1, (self.num_hashes, self.chunks_per_round))
            .flatten(2, 3)
            .transpose(0, 1)
            .index_select(2, self.token_slots)
        )

    def look_adjacent(self, x: Tensor, num_before: int, num_after: int) -> Tensor:
        """(heads, rounds x chunks, chunk, ...) to the same of each chunk with its neighbours: the ring is a sequence's."""
        return torch.cat(
            [x if step == 0 else x.index_select(1, self._neighbor_index(step)) for step in range(-num_before, num_after + 1)], 2
        )

    def _neighbor_index(self, offset: int) -> Tensor:
        """(rounds x chunks,): for each chunk that which lies so many steps behind it."""
        ends = self.chunks_per_seq.cumsum(0)
        chunk = torch.arange(self.chunks_per_round, device=ends.device)
        owner = torch.searchsorted(ends, chunk, right=True).clamp(max=len(ends) - 1)
        each, first = self.chunks_per_seq[owner], (ends - self.chunks_per_seq)[owner]
        turn = torch.arange(self.num_hashes, device=ends.device)[:, None]
        found = (turn * each + chunk - first + offset) % (self.num_hashes * each)
        return (found // each * self.chunks_per_round + (first + found % each).clamp(max=self.chunks_per_round - 1)).flatten()


MASK_VALUE = -1e9  # less than LONELY, and still a number


class ChunkConfig(Config, frozen=True):
    chunk: Annotated[PosInt, "tokens of a chunk"] = 64
    before: Annotated[NonNegInt, "chunks seen before a token's own"] = 1
    after: Annotated[NonNegInt, "chunks seen behind it"] = 0
    dropout: Annotated[Probability, "on attention weights"] = 0.0


class ReformerChunked(Variant, frozen=True, tag="chunked"):
    """As Trax and Hugging Face have it, to read their models; `hashed` is the better one to train.

    Chunks see whom they hold whatever the bucket, a key met in two rounds counts twice, and where a chunk of sorted tokens
    ends depends on all of them: `causal` hides later tokens, but which earlier ones are near is still theirs to decide.
    """

    heads: Annotated[PosInt, "attention heads"] = 12
    size: Annotated[PosInt | None, "numbers of a head; none: those of all heads are the width"] = None
    layers: Annotated[
        tuple[Literal["near", "hashed"], ...], Meta(min_length=1), "what layers do, one after another and from the first again"
    ] = ("near", "hashed")
    near: Annotated[ChunkConfig, "of layers that look around them"] = ChunkConfig()
    hashed: Annotated[ChunkConfig, "of layers that look at their bucket and its neighbours"] = ChunkConfig()
    buckets: Annotated[PosInt | Annotated[tuple[PosInt, ...], Meta(min_length=1)], "even; or factors of many"] = 64
    rounds: Annotated[PosInt, "times that tokens are hashed anew"] = 1
    seed: Annotated[NonNegInt, "of the hashes where nothing is learnt; training draws new ones every time"] = 0
    causal: Annotated[bool, "see only what came before"] = False

    def for_layer(self, layer_idx: int, num_layers: int) -> "ReformerChunked":
        """That of one layer."""
        return msgspec.structs.replace(self, layers=(self.layers[layer_idx % len(self.layers)],))

    def build(self, hidden_size: int) -> Mixer:
        if self.size is None and hidden_size % self.heads:
            raise UserError(f"a width of {hidden_size} does not divide into {self.heads} heads; set model.mixer.size")
        return (ChunkedLocalAttention if self.layers[0] == "near" else ChunkedLshAttention)(
            self, hidden_size, self.size or hidden_size // self.heads
        )


class ChunkedLocalAttention(Mixer):
    def __init__(self, config: ReformerChunked, hidden_size: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.causal, self.chunk_config, inner = (
            config.heads,
            config.causal,
            config.near,
            config.heads * head_dim,
        )
        self.project, self.out = nn.Linear(hidden_size, 3 * inner, bias=False), nn.Linear(inner, hidden_size, bias=False)
        self.project.weight.parts = 3  # type: ignore[attr-defined]  # an optimizer may treat each by itself

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        _reject_prefix(layout)
        parts = self.project(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)
        q, k, v = (part.transpose(0, 1) for part in parts)
        order = layout.seq_id.argsort(stable=True).expand(1, self.num_heads, -1)
        ring = LshChunks.from_layout(layout, self.chunk_config.chunk, 1)
        q, k, v = (gather_tokens(part, order) for part in (q, k * q.shape[-1] ** -0.5, v))
        mixed, _ = _chunked_attention(self, ring, q, k, v, order, mask_self=False)
        return self.out(gather_tokens(mixed, invert_permutation(order))[0].transpose(0, 1).flatten(1))


class ChunkedLshAttention(Mixer):
    def __init__(self, config: ReformerChunked, hidden_size: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.causal, self.chunk_config, inner = (
            config.heads,
            config.causal,
            config.hashed,
            config.heads * head_dim,
        )
        self.num_hashes = config.rounds
        self.project, self.out = nn.Linear(hidden_size, 2 * inner, bias=False), nn.Linear(inner, hidden_size, bias=False)
        self.project.weight.parts = 2  # type: ignore[attr-defined]
        buckets = config.buckets if isinstance(config.buckets, tuple) else (config.buckets,)
        self.hashes = LshHash(config.heads, head_dim, config.rounds, buckets, config.seed)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        _reject_prefix(layout)
        qk, v = (t.transpose(0, 1) for t in self.project(x).unflatten(-1, (2, self.num_heads, -1)).unbind(-3))
        order = (layout.seq_id * self.hashes.num_buckets + self.hashes(qk)).argsort(dim=-1, stable=True)
        ring = LshChunks.from_layout(layout, self.chunk_config.chunk, self.num_hashes)
        q, k, v = (gather_tokens(part, order) for part in (qk, unit_norm(qk), v))
        mixed, mass = _chunked_attention(self, ring, q, k, v, order, mask_self=True)
        back = invert_permutation(order)
        weights = gather_tokens(mass, back).softmax(0)
        return self.out((weights.to(v.dtype) * gather_tokens(mixed, back)).sum(0).transpose(0, 1).flatten(1))


def _chunked_attention(
    mixer: ChunkedLocalAttention | ChunkedLshAttention,
    lsh_chunks: LshChunks,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sorted_idx: Tensor,
    mask_self: bool,
) -> tuple[Tensor, Tensor]:
    """What sorted tokens, (rounds, heads, tokens, width), gather from their chunks, and the logarithm of its mass.

    `alone`: a token sees itself only if nobody else is there.
    """
    chunks = mixer.chunk_config
    mine = lsh_chunks.to_chunks(sorted_idx, -1)
    k, v, theirs = (
        lsh_chunks.look_adjacent(t, chunks.before, chunks.after)
        for t in (lsh_chunks.to_chunks(k), lsh_chunks.to_chunks(v), mine)
    )
    mine, theirs = mine[..., None], theirs[..., None, :]
    scores = (lsh_chunks.to_chunks(q) @ k.mT).float()
    hidden = (theirs < 0) | (theirs > mine) if mixer.causal else theirs < 0  # within a sequence order is place
    scores = scores.masked_fill(hidden, MASK_VALUE)
    scores = scores.masked_fill(mine == theirs, SELF_MASK_VALUE) if mask_self else scores
    weights = F.dropout(scores.softmax(-1), chunks.dropout, mixer.training)
    return lsh_chunks.from_chunks(weights.to(v.dtype) @ v), lsh_chunks.from_chunks(scores.logsumexp(-1, keepdim=True))


def _reject_prefix(layout: Layout) -> None:
    if layout.prefix_lengths is not None:
        raise UserError("chunks do not know of prefixes that see each other (UniLM); train a model with mixer=dense")
