"""Tables whose rows are read and moved a few at a time."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

BOUND = 4.0  # times the rate: steps that one row may take at once, at the full length of each

Put = Callable[[Tensor], None]
Change = Callable[[], None]


class Step(NamedTuple):
    """What a rule makes of some text: changes of either table, which are yet to be made."""

    inputs: list[Change]
    outputs: list[Change]
    loss: Tensor | None  # mean of what was foretold, if it was to be told


class Source(Protocol):
    def open(self, ids: Tensor) -> tuple[Tensor, Put]:
        """(ids, width): the vectors of these, and what adds a change of the same shape to them."""
        ...


class Table:
    """`moved` tells how often a word of text moves each row, in expectation; `batch` how many words do so at once.

    word2vec takes such steps one after another; here they are summed up. Where the sum would overshoot, as with the most
    frequent words of a large batch, each of them is shortened.
    """

    def __init__(self, rows: Tensor, moved: Tensor | None = None) -> None:
        self.rows, self.moved, self.batch = rows, moved, 1  # (rows, width), (rows,)
        self.most = float(moved.max()) if moved is not None else 0.0
        self.scale: Tensor | None = None  # (rows, 1)

    def pace(self, rate: float) -> None:
        """From now on steps are of this rate."""
        self.scale = None
        if self.moved is not None and self.batch * rate * self.most > BOUND:
            self.scale = (BOUND / (self.batch * rate * self.moved)).clamp(max=1)[:, None]

    def open(self, ids: Tensor) -> tuple[Tensor, Put]:
        return self.rows.index_select(0, ids), lambda change: self.add(ids, change)

    def add(self, ids: Tensor, change: Tensor, times: Tensor | None = None) -> None:
        """`times` (ids, 1) lengthens each change; the tensor it comes in is used up."""
        if self.scale is not None:
            short = self.scale.index_select(0, ids)
            times = short if times is None else short.mul_(times)
        self.rows.index_add_(0, ids, change if times is None else change.mul_(times))

    def summed(self, ids: Tensor, starts: Tensor, times: Tensor) -> Tensor:
        """(starts, width): the rows of each run of `ids`, added up so many times each."""
        return F.embedding_bag(ids, self.rows, starts, mode="sum", per_sample_weights=times)


class Spelt:
    """A word is the mean of its own row and those of its n-grams, as fastText has it: each of them takes the whole step.

    (The gradient of a mean would divide it by their number, and words would learn twenty times as slowly.)
    """

    def __init__(self, table: Table, parts: Tensor, starts: Tensor) -> None:
        """`parts` names the rows of all words, one word after another; `starts` (words + 1,) where those of each begin."""
        self.table, self.parts, self.starts = table, parts, starts

    def open(self, ids: Tensor) -> tuple[Tensor, Put]:
        words, which = ids.unique(return_inverse=True)
        first, sizes = self.starts[words], self.starts[words + 1] - self.starts[words]
        ends = sizes.cumsum(0)
        owner = sizes.new_ones(len(sizes)).cumsum(0).sub_(1).repeat_interleave(sizes)
        parts = self.parts[(first - ends + sizes).index_select(0, owner) + owner.new_ones(len(owner)).cumsum(0).sub_(1)]
        vectors = F.embedding_bag(parts, self.table.rows, ends - sizes, mode="mean")

        def put(change: Tensor) -> None:
            summed = Table(change.new_zeros(len(words), change.shape[1]))
            summed.add(which, change)
            self.table.add(parts, summed.rows.index_select(0, owner))

        return vectors.index_select(0, which), put
