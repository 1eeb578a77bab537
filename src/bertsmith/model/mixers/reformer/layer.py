"""Reformer: a token looks only at the nearest of those that hash to its bucket, in several rounds."""

from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ....config import Count, Variant, Whole
from ....errors import BadInput
from ...packing import Layout
from ..base import Mixer
from .lsh import LONELY, Hashes, met, ranks, unit


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
        alone = torch.full((layout.longest,), max(LONELY, torch.finfo(v.dtype).min / 2), device=v.device, dtype=v.dtype).diag()
        seen = layout.real()[:, None, None]
        if self.config.causal:
            seen = seen & torch.ones_like(alone, dtype=torch.bool).tril()
        q, k, v = (layout.grid(t).transpose(1, 2) for t in (qk, unit(qk), v))
        hidden = alone.expand(len(q), 1, -1, -1).masked_fill(~seen, float("-inf"))
        return layout.flat(F.scaled_dot_product_attention(q, k, v, hidden, scale=1.0).transpose(1, 2))

    def _hashed(self, qk: Tensor, v: Tensor, layout: Layout) -> Tensor:
        qk, v = qk.transpose(0, 1), v.transpose(0, 1)
        mixed, mass = met(qk, unit(qk), v, *self.sort(qk, layout), self.config.reach, self.config.causal)
        return (mass.softmax(0)[..., None].to(v.dtype) * mixed).sum(0).transpose(0, 1)

    def sort(self, qk: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """(rounds, heads, tokens) twice: the order of each round by bucket, and the codes of the tokens.

        Codes of two differ by no more than the reach if they are in one bucket, and as near as that there.
        """
        label = self._labels(qk, layout)
        order = label.argsort(dim=-1, stable=True)
        return order, (ranks(order) + label * (self.config.reach + 1)).to(label.dtype)

    def _labels(self, qk: Tensor, layout: Layout) -> Tensor:
        """(rounds, heads, tokens): one number for a sequence and a bucket."""
        assert self.hashes is not None
        bucket = self.hashes(qk)
        if not self.config.causal:  # a short sequence is one bucket: to see all of it costs no more
            bucket = bucket.masked_fill(layout.once(("short", self.config.reach), lambda: self._short(layout)), 0)
        most = layout.owner.shape[0] + 2 * layout.sequences * self.hashes.buckets * (self.config.reach + 2)
        return (layout.owner * self.hashes.buckets + bucket).to(torch.int32 if most < 2**31 else torch.int64)  # quicker to sort

    def _short(self, layout: Layout) -> Tensor:
        """(tokens,) bool: of a sequence that lies within the reach of each of its tokens."""
        sizes = torch.zeros(2 * layout.sequences, dtype=torch.long, device=layout.owner.device)  # padding owns itself
        return sizes.index_add(0, layout.owner, torch.ones_like(layout.owner))[layout.owner] <= self.config.reach + 1
