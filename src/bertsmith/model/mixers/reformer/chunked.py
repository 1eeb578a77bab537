"""Sequences cut in chunks that lie in rings: the first has the last before it, and rounds follow one another."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ....config import Chance, Config, Count, Variant, Whole
from ....errors import BadInput
from ...packing import Layout
from ..base import Mixer
from .lsh import LONELY, Hashes, ranks, taken, unit


@dataclass(frozen=True)
class Ring:
    """Every sequence is cut from its own beginning, so what is packed beside it changes nothing.

    There are as many chunks as any sequences of so many tokens may need, and a compiled graph serves any lengths.
    """

    chunk: int
    owner: Tensor  # (tokens,) in order
    sizes: Tensor  # (owners,): tokens of each
    rounds: int

    @classmethod
    def of(cls, layout: Layout, chunk: int, rounds: int) -> "Ring":
        owners = layout.sequences * (1 if layout.gapless else 2)  # padding of a row owns itself
        sizes = torch.zeros(owners, dtype=torch.long, device=layout.owner.device)
        sizes = sizes.index_add(0, layout.owner, torch.ones_like(layout.owner))
        return cls(chunk, layout.owner.sort(stable=True).values, sizes, rounds)

    @property
    def count(self) -> int:
        """Chunks of a round."""
        return self.owner.shape[0] // self.chunk + self.sizes.shape[0]

    @property
    def each(self) -> Tensor:
        """(owners,): chunks of each, one at least."""
        return ((self.sizes + self.chunk - 1) // self.chunk).clamp(min=1)

    @property
    def slots(self) -> Tensor:
        """(tokens,): where those of a round, sorted by owner, lie in its chunks."""
        before, chunks = self.sizes.cumsum(0) - self.sizes, self.each.cumsum(0) - self.each
        place = torch.arange(self.owner.shape[0], device=self.owner.device) - before[self.owner]
        return chunks[self.owner] * self.chunk + place

    def cut(self, x: Tensor, fill: int = 0) -> Tensor:
        """(rounds, heads, tokens, ...) to (heads, rounds x chunks, chunk, ...)"""
        room = x.new_full((*x.shape[:2], self.count * self.chunk, *x.shape[3:]), fill)
        return room.index_copy(2, self.slots, x).transpose(0, 1).unflatten(2, (self.count, self.chunk)).flatten(1, 2)

    def flat(self, x: Tensor) -> Tensor:
        """And back."""
        return x.unflatten(1, (self.rounds, self.count)).flatten(2, 3).transpose(0, 1).index_select(2, self.slots)

    def around(self, x: Tensor, before: int, after: int) -> Tensor:
        """(heads, rounds x chunks, chunk, ...) to the same of each chunk with its neighbours: the ring is a sequence's."""
        return torch.cat([x if step == 0 else x.index_select(1, self._next(step)) for step in range(-before, after + 1)], 2)

    def _next(self, step: int) -> Tensor:
        """(rounds x chunks,): for each chunk that which lies so many steps behind it."""
        ends = self.each.cumsum(0)
        chunk = torch.arange(self.count, device=ends.device)
        owner = torch.searchsorted(ends, chunk, right=True).clamp(max=len(ends) - 1)
        each, first = self.each[owner], (ends - self.each)[owner]
        turn = torch.arange(self.rounds, device=ends.device)[:, None]
        found = (turn * each + chunk - first + step) % (self.rounds * each)
        return (found // each * self.count + (first + found % each).clamp(max=self.count - 1)).flatten()


HIDDEN = -1e9  # less than LONELY, and still a number


class Chunks(Config, frozen=True):
    chunk: Annotated[Count, "tokens of a chunk"] = 64
    before: Annotated[Whole, "chunks seen before a token's own"] = 1
    after: Annotated[Whole, "chunks seen behind it"] = 0
    dropout: Annotated[Chance, "on attention weights"] = 0.0


class Chunked(Variant, frozen=True):
    """As Trax and Hugging Face have it, to read their models; `hashed` is the better one to train.

    Chunks see whom they hold whatever the bucket, a key met in two rounds counts twice, and where a chunk of sorted tokens
    ends depends on all of them: `causal` hides later tokens, but which earlier ones are near is still theirs to decide.
    """

    heads: Annotated[Count, "attention heads"] = 12
    size: Annotated[Count | None, "numbers of a head; none: those of all heads are the width"] = None
    layers: Annotated[
        tuple[Literal["near", "hashed"], ...], Meta(min_length=1), "what layers do, one after another and from the first again"
    ] = ("near", "hashed")
    near: Annotated[Chunks, "of layers that look around them"] = Chunks()
    hashed: Annotated[Chunks, "of layers that look at their bucket and its neighbours"] = Chunks()
    buckets: Annotated[Count | Annotated[tuple[Count, ...], Meta(min_length=1)], "even; or factors of many"] = 64
    rounds: Annotated[Count, "times that tokens are hashed anew"] = 1
    seed: Annotated[Whole, "of the hashes where nothing is learnt; training draws new ones every time"] = 0
    causal: Annotated[bool, "see only what came before"] = False

    def at(self, layer: int, layers: int) -> "Chunked":
        """That of one layer."""
        return msgspec.structs.replace(self, layers=(self.layers[layer % len(self.layers)],))

    def build(self, width: int) -> Mixer:
        if self.size is None and width % self.heads:
            raise BadInput(f"a width of {width} does not divide into {self.heads} heads; set model.mixer.size")
        return (NearChunks if self.layers[0] == "near" else HashedChunks)(self, width, self.size or width // self.heads)


class NearChunks(Mixer):
    def __init__(self, config: Chunked, width: int, size: int) -> None:
        super().__init__()
        self.heads, self.causal, self.chunks, inner = config.heads, config.causal, config.near, config.heads * size
        self.project, self.out = nn.Linear(width, 3 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.project.weight.parts = 3  # type: ignore[attr-defined]  # an optimizer may treat each by itself

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        _without_prefixes(layout)
        parts = self.project(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (part.transpose(0, 1) for part in parts)
        order = layout.owner.argsort(stable=True).expand(1, self.heads, -1)
        ring = Ring.of(layout, self.chunks.chunk, 1)
        q, k, v = (taken(part, order) for part in (q, k * q.shape[-1] ** -0.5, v))
        mixed, _ = _met(self, ring, q, k, v, order, alone=False)
        return self.out(taken(mixed, ranks(order))[0].transpose(0, 1).flatten(1))


class HashedChunks(Mixer):
    def __init__(self, config: Chunked, width: int, size: int) -> None:
        super().__init__()
        self.heads, self.causal, self.chunks, inner = config.heads, config.causal, config.hashed, config.heads * size
        self.rounds = config.rounds
        self.project, self.out = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.project.weight.parts = 2  # type: ignore[attr-defined]
        buckets = config.buckets if isinstance(config.buckets, tuple) else (config.buckets,)
        self.hashes = Hashes(config.heads, size, config.rounds, buckets, config.seed)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        _without_prefixes(layout)
        qk, v = (t.transpose(0, 1) for t in self.project(x).unflatten(-1, (2, self.heads, -1)).unbind(-3))
        order = (layout.owner * self.hashes.buckets + self.hashes(qk)).argsort(dim=-1, stable=True)
        ring = Ring.of(layout, self.chunks.chunk, self.rounds)
        q, k, v = (taken(part, order) for part in (qk, unit(qk), v))
        mixed, mass = _met(self, ring, q, k, v, order, alone=True)
        back = ranks(order)
        weights = taken(mass, back).softmax(0)
        return self.out((weights.to(v.dtype) * taken(mixed, back)).sum(0).transpose(0, 1).flatten(1))


def _met(
    mixer: NearChunks | HashedChunks, ring: Ring, q: Tensor, k: Tensor, v: Tensor, order: Tensor, alone: bool
) -> tuple[Tensor, Tensor]:
    """What sorted tokens, (rounds, heads, tokens, width), gather from their chunks, and the logarithm of its mass.

    `alone`: a token sees itself only if nobody else is there.
    """
    chunks = mixer.chunks
    mine = ring.cut(order, -1)
    k, v, theirs = (ring.around(t, chunks.before, chunks.after) for t in (ring.cut(k), ring.cut(v), mine))
    mine, theirs = mine[..., None], theirs[..., None, :]
    scores = (ring.cut(q) @ k.mT).float()
    hidden = (theirs < 0) | (theirs > mine) if mixer.causal else theirs < 0  # within a sequence order is place
    scores = scores.masked_fill(hidden, HIDDEN)
    scores = scores.masked_fill(mine == theirs, LONELY) if alone else scores
    weights = F.dropout(scores.softmax(-1), chunks.dropout, mixer.training)
    return ring.flat(weights.to(v.dtype) @ v), ring.flat(scores.logsumexp(-1, keepdim=True))


def _without_prefixes(layout: Layout) -> None:
    if layout.prefix is not None:
        raise BadInput("chunks do not know of prefixes that see each other (UniLM); train a model with mixer=dense")
