"""Reformer: a token looks only at the nearest of those that hash to its bucket, in several rounds."""

from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ....config import NonNegInt, PosInt, Variant
from ....errors import UserError
from ...packing import Layout
from ..base import Mixer
from .lsh import SELF_MASK_VALUE, LshHash, invert_permutation, lsh_attention, unit_norm


class Reformer(Variant, frozen=True, tag="hashed"):
    """Kitaev et al. 2020: one matrix for queries and keys, and keys of length one."""

    heads: Annotated[PosInt, "attention heads"] = 12
    buckets: Annotated[
        PosInt | Annotated[tuple[PosInt, ...], Meta(min_length=1)],
        "even, of each round; or factors of many, such as [16, 32]; 1: every token meets every other, exactly",
    ] = 64
    rounds: Annotated[PosInt, "times that tokens are hashed anew; more miss fewer of those that matter"] = 4
    reach: Annotated[PosInt, "of its bucket, how many a token sees on each side"] = 64
    causal: Annotated[bool, "see only what came before"] = False
    seed: Annotated[NonNegInt, "of the hashes where nothing is learnt; training draws new ones every time"] = 0
    bias: Annotated[bool, "add a bias after each matrix"] = True

    def build(self, hidden_size: int) -> Mixer:
        return ReformerAttention(self, hidden_size)


class ReformerAttention(Mixer):
    """Sorted by (sequence, bucket, place), buckets are runs, and a band over them is the attention.

    The paper cuts the sorted tokens in chunks; where they fall depends on the neighbours in a pack, and on words yet to
    come. A band counts tokens of the same bucket alone: exact in a pack, and exactly causal. Its blocks meet themselves
    and their neighbours, as the paper's chunks do, so it costs the same.
    """

    def __init__(self, config: Reformer, hidden_size: int) -> None:
        super().__init__()
        if hidden_size % config.heads:
            raise UserError(f"a width of {hidden_size} does not divide into {config.heads} heads; try "
                           f"model.mixer.heads={max(1, hidden_size // 64)}")  # fmt: skip
        self.config, self.head_dim = config, hidden_size // config.heads
        self.project, self.out = (
            nn.Linear(hidden_size, 2 * hidden_size, bias=config.bias),
            nn.Linear(hidden_size, hidden_size, bias=config.bias),
        )
        self.project.weight.parts = 2  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        buckets = config.buckets if isinstance(config.buckets, tuple) else (config.buckets,)
        self.hashes = LshHash(config.heads, self.head_dim, config.rounds, buckets, config.seed) if buckets != (1,) else None

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.prefix_lengths is not None:
            raise UserError("hashes do not know of prefixes that see each other (UniLM); train a model with mixer=dense")
        qk, v = self.project(x).unflatten(-1, (2, self.config.heads, -1)).unbind(-3)  # (tokens, heads, width of a head)
        mixed = self._full_attention(qk, v, layout) if self.hashes is None else self._lsh_attention(qk, v, layout)
        return self.out(mixed.flatten(1))

    def _full_attention(self, qk: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """One bucket: the whole square of scores."""
        alone = torch.full(
            (layout.max_seqlen,), max(SELF_MASK_VALUE, torch.finfo(v.dtype).min / 2), device=v.device, dtype=v.dtype
        ).diag()
        seen = layout.padding_mask()[:, None, None]
        if self.config.causal:
            seen = seen & torch.ones_like(alone, dtype=torch.bool).tril()
        q, k, v = (layout.pad(t).transpose(1, 2) for t in (qk, unit_norm(qk), v))
        hidden = alone.expand(len(q), 1, -1, -1).masked_fill(~seen, float("-inf"))
        return layout.unpad(F.scaled_dot_product_attention(q, k, v, hidden, scale=1.0).transpose(1, 2))

    def _lsh_attention(self, qk: Tensor, v: Tensor, layout: Layout) -> Tensor:
        qk, v = qk.transpose(0, 1), v.transpose(0, 1)
        mixed, mass = lsh_attention(
            qk, unit_norm(qk), v, *self.sort_by_bucket(qk, layout), self.config.reach, self.config.causal
        )
        return (mass.softmax(0)[..., None].to(v.dtype) * mixed).sum(0).transpose(0, 1)

    def sort_by_bucket(self, qk: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """(rounds, heads, tokens) twice: the order of each round by bucket, and the codes of the tokens.

        Codes of two differ by no more than the reach if they are in one bucket, and as near as that there.
        """
        label = self._bucket_ids(qk, layout)
        order = label.argsort(dim=-1, stable=True)
        return order, (invert_permutation(order) + label * (self.config.reach + 1)).to(label.dtype)

    def _bucket_ids(self, qk: Tensor, layout: Layout) -> Tensor:
        """(rounds, heads, tokens): one number for a sequence and a bucket."""
        assert self.hashes is not None
        bucket = self.hashes(qk)
        if not self.config.causal:  # a short sequence is one bucket: to see all of it costs no more
            bucket = bucket.masked_fill(
                layout.memoize(("short", self.config.reach), lambda: self._is_short_sequence(layout)), 0
            )
        most = layout.seq_id.shape[0] + 2 * layout.num_sequences * self.hashes.num_buckets * (self.config.reach + 2)
        return (layout.seq_id * self.hashes.num_buckets + bucket).to(
            torch.int32 if most < 2**31 else torch.int64
        )  # quicker to sort

    def _is_short_sequence(self, layout: Layout) -> Tensor:
        """(tokens,) bool: of a sequence that lies within the reach of each of its tokens."""
        sizes = torch.zeros(2 * layout.num_sequences, dtype=torch.long, device=layout.seq_id.device)  # padding owns itself
        return sizes.index_add(0, layout.seq_id, torch.ones_like(layout.seq_id))[layout.seq_id] <= self.config.reach + 1
