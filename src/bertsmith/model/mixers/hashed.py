"""Reformer: a token looks only at the nearest of those that hash to its bucket, in several rounds."""

from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ...config import Count, Variant, Whole
from ...errors import BadInput
from ..band import Band
from ..hashes import Hashes, ranks, taken, unit
from ..layout import Layout
from .base import Mixer

LONELY = -1e5  # the score of a token with itself: enough if it is alone, nothing beside any other


class Hashed(Variant, frozen=True):
    """Kitaev et al. 2020: one matrix for queries and keys, and keys of length one."""

    heads: Annotated[Count, "attention heads"] = 12
    buckets: Annotated[
        Count | Annotated[tuple[Count, ...], Meta(min_length=1)],
        "even, of each round; or factors of many, such as [16, 32]; 1: every token meets every other, exactly",
    ] = 64
    rounds: Annotated[Count, "times that tokens are hashed anew; more miss fewer of those that matter"] = 4
    reach: Annotated[Count, "of its bucket, how many a token sees on each side"] = 64
    causal: Annotated[bool, "see only what came before"] = False
    seed: Annotated[Whole, "of the hashes where nothing is learnt; training draws new ones every time"] = 0
    bias: Annotated[bool, "add a bias after each matrix"] = True

    def build(self, width: int) -> Mixer:
        return HashedAttention(self, width)


class HashedAttention(Mixer):
    """Sorted by (sequence, bucket, place), buckets are runs, and a band over them is the attention.

    The paper cuts the sorted tokens in chunks; where they fall depends on the neighbours in a pack, and on words yet to
    come. A band counts tokens of the same bucket alone: exact in a pack, and exactly causal. Its blocks meet themselves
    and their neighbours, as the paper's chunks do, so it costs the same.
    """

    def __init__(self, config: Hashed, width: int) -> None:
        super().__init__()
        if width % config.heads:
            raise BadInput(f"a width of {width} does not divide into {config.heads} heads; try "
                           f"model.mixer.heads={max(1, width // 64)}")  # fmt: skip
        self.config, self.each = config, width // config.heads
        self.project, self.out = nn.Linear(width, 2 * width, bias=config.bias), nn.Linear(width, width, bias=config.bias)
        self.project.weight.parts = 2  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        buckets = config.buckets if isinstance(config.buckets, tuple) else (config.buckets,)
        self.hashes = Hashes(config.heads, self.each, config.rounds, buckets, config.seed) if buckets != (1,) else None

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.prefix is not None:
            raise BadInput("hashes do not know of prefixes that see each other (UniLM); train a model with mixer=dense")
        qk, v = self.project(x).unflatten(-1, (2, self.config.heads, -1)).unbind(-3)  # (tokens, heads, width of a head)
        mixed = self._whole(qk, v, layout) if self.hashes is None else self._hashed(qk, v, layout)
        return self.out(mixed.flatten(1))

    def _whole(self, qk: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """One bucket: the whole square of scores."""
        alone = torch.full((layout.longest,), LONELY, device=v.device, dtype=v.dtype).diag()
        seen = layout.real()[:, None, None]
        if self.config.causal:
            seen = seen & torch.ones_like(alone, dtype=torch.bool).tril()
        q, k, v = (layout.grid(t).transpose(1, 2) for t in (qk, unit(qk), v))
        hidden = alone.expand(len(q), 1, -1, -1).masked_fill(~seen, float("-inf"))
        return layout.flat(F.scaled_dot_product_attention(q, k, v, hidden, scale=1.0).transpose(1, 2))

    def _hashed(self, qk: Tensor, v: Tensor, layout: Layout) -> Tensor:
        qk, v = qk.transpose(0, 1), v.transpose(0, 1)
        label = self._labels(qk, layout)
        order = label.argsort(dim=-1, stable=True)
        rank = ranks(order)
        code = rank + label * (self.config.reach + 1)  # those of two tokens in one bucket, within reach, differ by no more
        mixed, mass = self._rounds(taken(qk, order), taken(v, order), taken(code.permute(1, 2, 0), order))
        weights = taken(mass, rank).softmax(0)
        return (weights.to(v.dtype) * taken(mixed, rank)).sum(0).transpose(0, 1)

    def _labels(self, qk: Tensor, layout: Layout) -> Tensor:
        """(rounds, heads, tokens): one number for a sequence and a bucket."""
        assert self.hashes is not None
        bucket = self.hashes(qk)
        if not self.config.causal:  # a short sequence is one bucket: to see all of it costs no more
            bucket = bucket.masked_fill(layout.once(("short", self.config.reach), lambda: self._short(layout)), 0)
        return layout.owner * self.hashes.buckets + bucket

    def _short(self, layout: Layout) -> Tensor:
        """(tokens,) bool: of a sequence that lies within the reach of each of its tokens."""
        sizes = torch.zeros(2 * layout.sequences, dtype=torch.long, device=layout.owner.device)  # padding owns itself
        return sizes.index_add(0, layout.owner, torch.ones_like(layout.owner))[layout.owner] <= self.config.reach + 1

    def _rounds(self, qk: Tensor, v: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """What each sorted token gathers, and the logarithm of the mass it was gathered with."""
        band = Band(qk.shape[-2], self.config.reach, self.config.causal)
        scores = (band.queries(qk) @ band.keys(unit(qk)).mT).float()
        apart = -2 * (self.config.reach + 1)  # padding is in no bucket
        mine, theirs = band.queries(codes, apart), band.keys(codes, apart)
        if self.config.rounds > 1:  # a key met in several rounds counts once
            met = sum(self._near(mine[..., n], theirs[..., n]).byte() for n in range(self.config.rounds))
            scores = scores - met.clamp(min=1).log()  # type: ignore[union-attr]
        own = [self._near(mine[n, ..., n], theirs[n, ..., n]) for n in range(self.config.rounds)]
        scores = scores.masked_fill(band.ahead(qk.device) == 0, LONELY).masked_fill(~torch.stack(own), float("-inf"))
        mixed = scores.softmax(-1).to(v.dtype) @ band.keys(v)
        return band.flat(mixed), band.flat(scores.logsumexp(-1, keepdim=True))

    def _near(self, mine: Tensor, theirs: Tensor) -> Tensor:
        """(.., block, sight) bool: in one bucket, and within reach there."""
        behind = mine[..., None] - theirs[..., None, :]
        return (behind >= 0) & (behind <= self.config.reach) if self.config.causal else behind.abs() <= self.config.reach
