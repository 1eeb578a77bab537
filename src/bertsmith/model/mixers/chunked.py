"""Reformer as it was published: tokens, as they stand or sorted by their hashes, in chunks that see their neighbours."""

from typing import Annotated, Literal

import msgspec
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ...config import Chance, Config, Count, Variant, Whole
from ...errors import BadInput
from ..buckets import LONELY
from ..hashes import Hashes, ranks, taken, unit
from ..layout import Layout
from ..ring import Ring
from .base import Mixer

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
