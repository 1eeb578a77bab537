"""Tables whose rows are read and moved a few at a time."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

MAX_ROW_STEPS = 4.0  # times the rate: steps that one row may take at once, at the full length of each

ApplyUpdate = Callable[[Tensor], None]
PendingUpdate = Callable[[], None]


class StepUpdates(NamedTuple):
    """What a rule makes of some text: changes of either table, which are yet to be made."""

    input_updates: list[PendingUpdate]
    output_updates: list[PendingUpdate]
    loss: Tensor | None  # mean of what was foretold, if it was to be told


class RowSource(Protocol):
    def gather(self, ids: Tensor) -> tuple[Tensor, ApplyUpdate]:
        """(ids, width): the vectors of these, and what adds a change of the same shape to them."""
        ...


class VectorTable:
    """`moved` tells how often a word of text moves each row, in expectation; `batch` how many words do so at once.

    word2vec takes such steps one after another; here they are summed up. Where the sum would overshoot, as with the most
    frequent words of a large batch, each of them is shortened.
    """

    def __init__(self, rows: Tensor, update_frequency: Tensor | None = None) -> None:
        self.rows, self.update_frequency, self.batch_words = rows, update_frequency, 1  # (rows, width), (rows,)
        self.max_frequency = float(update_frequency.max()) if update_frequency is not None else 0.0
        self.step_scale: Tensor | None = None  # (rows, 1)

    def set_lr(self, lr: float) -> None:
        """From now on steps are of this rate."""
        self.step_scale = None
        if self.update_frequency is not None and self.batch_words * lr * self.max_frequency > MAX_ROW_STEPS:
            self.step_scale = (MAX_ROW_STEPS / (self.batch_words * lr * self.update_frequency)).clamp(max=1)[:, None]

    def gather(self, ids: Tensor) -> tuple[Tensor, ApplyUpdate]:
        return self.rows.index_select(0, ids), lambda change: self.add(ids, change)

    def add(self, ids: Tensor, updates: Tensor, factors: Tensor | None = None) -> None:
        """`times` (ids, 1) lengthens each change; the tensor it comes in is used up."""
        if self.step_scale is not None:
            short = self.step_scale.index_select(0, ids)
            factors = short if factors is None else short.mul_(factors)
        self.rows.index_add_(0, ids, updates if factors is None else updates.mul_(factors))

    def sum_rows(self, ids: Tensor, offsets: Tensor, factors: Tensor) -> Tensor:
        """(starts, width): the rows of each run of `ids`, added up so many times each."""
        return F.embedding_bag(ids, self.rows, offsets, mode="sum", per_sample_weights=factors)


class NgramRows:
    """A word is the mean of its own row and those of its n-grams, as fastText has it: each of them takes the whole step.

    (The gradient of a mean would divide it by their number, and words would learn twenty times as slowly.)
    """

    def __init__(self, table: VectorTable, row_ids: Tensor, offsets: Tensor) -> None:
        """`parts` names the rows of all words, one word after another; `starts` (words + 1,) where those of each begin."""
        self.table, self.row_ids, self.offsets = table, row_ids, offsets

    def gather(self, ids: Tensor) -> tuple[Tensor, ApplyUpdate]:
        words, which = ids.unique(return_inverse=True)
        first, sizes = self.offsets[words], self.offsets[words + 1] - self.offsets[words]
        ends = sizes.cumsum(0)
        owner = sizes.new_ones(len(sizes)).cumsum(0).sub_(1).repeat_interleave(sizes)
        parts = self.row_ids[(first - ends + sizes).index_select(0, owner) + owner.new_ones(len(owner)).cumsum(0).sub_(1)]
        vectors = F.embedding_bag(parts, self.table.rows, ends - sizes, mode="mean")

        def put(change: Tensor) -> None:
            summed = VectorTable(change.new_zeros(len(words), change.shape[1]))
            summed.add(which, change)
            self.table.add(parts, summed.rows.index_select(0, owner))

        return vectors.index_select(0, which), put
