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
from .positions import turned

if TYPE_CHECKING:
    from .position_bias import Apart


FLASH = (torch.float16, torch.bfloat16)
Lengths = Sequence[int] | Tensor | NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Sequences one after another, with nothing between: `x` is (tokens, ...).

    Every tensor's size follows from the number of tokens and of sequences, so a compiled graph serves any lengths.
    """

    lengths: Tensor  # (sequences,), always on the host
    starts: Tensor  # (sequences + 1,) int32: where each begins, and where the last ends
    owner: Tensor  # (tokens,): the sequence of each token; equal owners may see each other
    place: Tensor  # (tokens,): its position there
    longest: int
    prefix: Tensor | None = None  # (sequences,), on the host: so many first tokens see each other where all else is causal
    anchors: Tensor | None = None  # (anchors,) in order, on the host: tokens that meet their whole sequence (Longformer)

    @classmethod
    def of(cls, lengths: Lengths, prefix: Lengths | None = None, anchors: Lengths | None = None) -> "Layout":
        sizes = np.asarray(lengths)  # numpy: torch's threads wait for each other, which costs more than it counts here
        starts = np.concatenate([[0], sizes.cumsum()])
        owner = np.arange(len(sizes)).repeat(sizes)
        place = np.arange(len(owner)) - starts[owner]
        tensor = torch.from_numpy
        more = (None if given is None else torch.as_tensor(given) for given in (prefix, anchors))
        return Layout(tensor(sizes), tensor(starts.astype(np.int32)), tensor(owner), tensor(place), int(sizes.max()), *more)

    gapless = True  # what `starts` bounds is all real

    @property
    def sequences(self) -> int:
        return self.starts.shape[0] - 1

    @property
    def firsts(self) -> Tensor:
        """(sequences,): the first token of each, where BERT keeps what it knows of the whole."""
        return cast(Tensor, self.once("firsts", lambda: self.starts[:-1].long()))

    @property
    def lasts(self) -> Tensor:
        """(sequences,): the last token of each, where a causal model has read the whole."""
        return self.starts[1:].long() - 1

    @property
    def anchored(self) -> Tensor:
        """(anchors,), beside the tokens: those that somebody chose, or else the first of each sequence."""
        if self.anchors is None:
            return self.firsts
        return cast(Tensor, self.once("anchored", lambda: cast(Tensor, self.anchors).to(self.starts.device, non_blocking=True)))

    def once(self, name: Hashable, find: Callable[[], Any]) -> Any:
        """What a mixer finds out about this layout, for the layers above it too; a compiled graph finds it anew."""
        if torch.compiler.is_compiling():
            return find()
        if name not in self._found:
            with torch.inference_mode(False):  # it may serve training later
                self._found[name] = find()
        return self._found[name]

    @cached_property
    def _found(self) -> dict[Hashable, Any]:
        return {}

    @property
    def even(self) -> bool:
        """All of one length: the rectangle is a view."""
        return self.owner.shape[0] == self.sequences * self.longest

    @property
    def views(self) -> bool:
        """Whether `grid` copies nothing."""
        return self.even

    def mix(
        self, qkv: Tensor, heads: int, turns: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        apart: "Apart | None" = None,
    ) -> Tensor:  # fmt: skip
        """(tokens, 3 x width) -> (tokens, width): queries, keys and values side by side, turned by their places if `turns`
        are given (Rotary), their scores leaning on distance if `apart` is."""
        if turns is not None:
            qkv = turned(qkv, turns, self.place, heads)
        if apart is not None:
            from .position_bias import leant

            q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(-3)
            return leant(q, k, v, self, apart, causal, dropout).flatten(-2)
        if self.gapless and not dropout and self.prefix is None and kernels.serves(qkv):
            from .kernels.short_attention import LONGEST, WIDTHS, attended

            if self.longest <= LONGEST and qkv.shape[1] // (3 * heads) in WIDTHS:
                return attended(qkv, self.starts, self.longest, heads, causal)
        q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(-3)
        return self.attend(q, k, v, causal=causal, dropout=dropout).flatten(-2)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0, keys: "Layout | None" = None
    ) -> Tensor:
        """(tokens, heads, width) three times in, once out; nothing crosses a border.

        With `keys`, k and v are of other sequences, as many as there are: each sequence sees the one of its number there.
        Flash attention drops nothing out: `dropout` on a GPU takes the padded rectangle instead, which is slower.
        """
        seen = self if keys is None else keys
        if causal and keys is None and self.prefix is not None:
            return self._after_prefixes(q, k, v, dropout)
        if self.gapless and q.is_cuda and q.dtype in FLASH and not dropout:
            from torch.nn.attention.varlen import varlen_attn

            sight = (-1, 0 if causal else -1)
            borders, longest = (self.starts, seen.starts), (self.longest, seen.longest)
            width = q.shape[-1]
            if gap := -width % 8:  # heads as the kernel wants them; zeros add nothing to a product
                q, k, v = (F.pad(t, (0, gap)) for t in (q, k, v))
            out = varlen_attn(q, k, v, *borders, *longest, window_size=sight, scale=width**-0.5)
            return cast(Tensor, out)[..., :width]
        if self.one_by_one and not q.is_cuda:
            parts = (t[None].split(one.lengths.tolist(), dim=1) for t, one in ((q, self), (k, seen), (v, seen)))
            return torch.cat([_attended(q, k, v, causal, dropout)[0] for q, k, v in zip(*parts, strict=True)])
        mask = None if seen.even else seen.real()[:, None, None]
        return self.flat(_attended(self.grid(q), seen.grid(k), seen.grid(v), causal, dropout, mask))

    def _after_prefixes(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        """Prefixes see all of themselves, what follows sees all before it (UniLM, Dong et al. 2019).

        Flash attention in two calls: prefixes by themselves; what follows, causal over the whole of its sequence, the
        last query beside the last key.
        """
        if self.gapless and q.is_cuda and q.dtype in FLASH and not dropout:
            (inside, prefixes), (behind, rests) = self._halves
            out = torch.empty_like(v)
            if len(inside):
                out[inside] = prefixes.attend(q[inside], k[inside], v[inside])
            if len(behind):
                out[behind] = rests.attend(q[behind], k, v, causal=True, keys=self)
            return out
        prefix = cast(Tensor, self.prefix)
        if self.one_by_one and not q.is_cuda:
            parts = (t[None].split(self.lengths.tolist(), dim=1) for t in (q, k, v))
            each = zip(*parts, prefix[:, None, None], strict=True)
            return torch.cat([_attended(q, k, v, False, dropout, prefixed(q.shape[1], one))[0] for q, k, v, one in each])
        sight = prefixed(self.longest, prefix.to(q.device)[:, None, None]) & self.real()[:, None]
        return self.flat(_attended(self.grid(q), self.grid(k), self.grid(v), False, dropout, sight[:, None]))

    @cached_property
    def _halves(self) -> list[tuple[Tensor, "Layout"]]:
        """Prefixes, and what follows them: which tokens they are, and how they lie by themselves; found on the host."""
        whole, prefix = Layout.of(self.lengths), cast(Tensor, self.prefix)
        inside, device = whole.place < prefix[whole.owner], self.starts.device
        parts = ((inside, prefix), (~inside, self.lengths - prefix))
        return [(rows.nonzero().squeeze(1).to(device), Layout.of(sizes).to(device)) for rows, sizes in parts]

    @property
    def one_by_one(self) -> bool:
        """On a CPU a call per sequence needs no mask, and beats the rectangle from 32 tokens a sequence up, or where it is
        more than half empty: one long text among many short ones."""
        if self.even or torch.compiler.is_compiling():  # a graph cannot depend on the lengths
            return False
        tokens = self.owner.shape[0]
        return tokens >= 32 * self.sequences or self.sequences * self.longest > 2 * tokens

    def grid(self, x: Tensor) -> Tensor:
        """(tokens, ...) -> (sequences, longest, ...), zero where a sequence is over."""
        if not self.even:
            empty = x.new_zeros(self.sequences * self.longest, *x.shape[1:])
            x = empty.index_copy(0, self.owner * self.longest + self.place, x)
        return x.unflatten(0, (self.sequences, self.longest))

    def flat(self, grid: Tensor) -> Tensor:
        x = grid.flatten(0, 1)
        return x if self.even else x[self.owner * self.longest + self.place]

    def mean(self, x: Tensor) -> Tensor:
        """(tokens, width) -> (sequences, width)"""
        return means(x, self.owner, self.starts.diff())

    def most(self, x: Tensor) -> Tensor:
        """(tokens, width) -> (sequences, width): the largest of each number."""
        least = x.new_full((self.sequences, x.shape[1]), float("-inf"))
        return least.scatter_reduce(0, self.owner[:, None].expand_as(x), x, "amax")

    def real(self) -> Tensor:
        """(sequences, longest) bool: False where a sequence is over."""
        return torch.arange(self.longest, device=self.starts.device) < self.starts.diff()[:, None]

    def to(self, device: Any) -> Self:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("lengths", "prefix", "anchors")}
        moved: dict[str, Any] = {n: v.to(device, non_blocking=True) for n, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True, kw_only=True)
class Rectangle(Layout):
    """A padded batch, flattened: for callers who bring rectangles. Padding sees only padding."""

    mask: Tensor  # (batch, length) bool: False on padding

    @classmethod
    def around(cls, mask: Tensor) -> "Rectangle":
        batch, length = mask.shape
        row = torch.arange(batch, device=mask.device)[:, None]
        owner = torch.where(mask, row, row + batch).flatten()
        place = torch.arange(length, device=mask.device).expand(batch, -1).flatten()
        starts = (torch.arange(batch + 1, device=mask.device) * length).int()
        return Rectangle(mask.sum(1), starts, owner, place, length, mask=mask)

    gapless = even = one_by_one = False
    views = True

    def grid(self, x: Tensor) -> Tensor:
        return x.unflatten(0, self.mask.shape)

    def flat(self, grid: Tensor) -> Tensor:
        return grid.flatten(0, 1)

    def real(self) -> Tensor:
        return self.mask


def means(rows: Tensor, owner: Tensor, sizes: Tensor | None = None) -> Tensor:
    """(rows, width) -> (owners, width), each the mean of its rows; owners are numbered from 0, without a gap.

    `sizes` are how many rows each has: counting them makes a GPU wait.
    """
    sizes = torch.bincount(owner) if sizes is None else sizes
    sums = rows.new_zeros(sizes.shape[0], rows.shape[1]).index_add(0, owner, rows)
    return sums / sizes[:, None].to(rows.dtype)


def prefixed(length: int, prefix: Tensor) -> Tensor:
    """(..., length, length) bool, for prefixes (..., 1, 1): what each token sees."""
    place = torch.arange(length, device=prefix.device)
    return (place <= place[:, None]) | (place < prefix)


def _attended(q: Tensor, k: Tensor, v: Tensor, causal: bool, dropout: float, mask: Tensor | None = None) -> Tensor:
    if mask is not None and causal:
        length = mask.shape[-1]
        mask, causal = mask & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril(), False
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=causal).transpose(1, 2)
