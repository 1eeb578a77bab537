"""Embedding tables of word vectors with sparse updates: plain rows, and fastText's words composed of n-gram rows."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

MAX_ROW_STEPS = 4.0  # times lr: updates of one row in a batch above which each is scaled down

ApplyUpdate = Callable[[Tensor], None]
PendingUpdate = Callable[[], None]


class StepUpdates(NamedTuple):
    """Updates of the input and output tables, computed but not yet applied, and the loss."""

    input_updates: list[PendingUpdate]
    output_updates: list[PendingUpdate]
    loss: Tensor | None  # mean per prediction, if requested


class RowSource(Protocol):
    """Vectors by id that can be updated."""

    def gather(self, ids: Tensor) -> tuple[Tensor, ApplyUpdate]:
        """(ids, vector_size): the vectors, and a function that adds an update of the same shape to them."""
        ...


class VectorTable:
    """Rows (rows, vector_size) with summed updates.

    update_frequency: (rows,), expected updates of each row per word of text; batch_words: words of text per step. word2vec
    applies updates one after another; here those of a batch are summed. Where the sum would overshoot, as for the most
    frequent words of a large batch, each update is scaled down.
    """

    def __init__(self, rows: Tensor, update_frequency: Tensor | None = None) -> None:
        self.rows, self.update_frequency, self.batch_words = rows, update_frequency, 1
        self.max_frequency = float(update_frequency.max()) if update_frequency is not None else 0.0
        self.step_scale: Tensor | None = None  # (rows, 1)

    def set_lr(self, lr: float) -> None:
        """Sets the scale of updates for this learning rate."""
        self.step_scale = None
        if self.update_frequency is not None and self.batch_words * lr * self.max_frequency > MAX_ROW_STEPS:
            self.step_scale = (MAX_ROW_STEPS / (self.batch_words * lr * self.update_frequency)).clamp(max=1)[:, None]

    def gather(self, ids: Tensor) -> tuple[Tensor, ApplyUpdate]:
        return self.rows.index_select(0, ids), lambda update: self.add(ids, update)

    def add(self, ids: Tensor, updates: Tensor, factors: Tensor | None = None) -> None:
        """Adds updates (ids, vector_size) to the rows, times `factors` (ids, 1); `updates` may be overwritten."""
        if self.step_scale is not None:
            scale = self.step_scale.index_select(0, ids)
            factors = scale if factors is None else scale.mul_(factors)
        self.rows.index_add_(0, ids, updates if factors is None else updates.mul_(factors))

    def sum_rows(self, ids: Tensor, offsets: Tensor, factors: Tensor) -> Tensor:
        """(offsets, vector_size): sums over the bags of `ids` that begin at `offsets`, of factor * row."""
        return F.embedding_bag(ids, self.rows, offsets, mode="sum", per_sample_weights=factors)


class NgramRows:
    """fastText: a word is the mean of its own row and those of its n-grams, and each of them gets the full update.

    (The gradient of the mean would be divided by their number, and training would be some twenty times as slow.)
    """

    def __init__(self, table: VectorTable, row_ids: Tensor, offsets: Tensor) -> None:
        """row_ids: rows of all words, concatenated; offsets: (words + 1,), where those of each word begin."""
        self.table, self.row_ids, self.offsets = table, row_ids, offsets

    def gather(self, ids: Tensor) -> tuple[Tensor, ApplyUpdate]:
        words, inverse = ids.unique(return_inverse=True)
        first_index, counts = self.offsets[words], self.offsets[words + 1] - self.offsets[words]
        ends = counts.cumsum(0)
        word_index = counts.new_ones(len(counts)).cumsum(0).sub_(1).repeat_interleave(counts)
        row_ids = self.row_ids[
            (first_index - ends + counts).index_select(0, word_index) + word_index.new_ones(len(word_index)).cumsum(0).sub_(1)
        ]
        vectors = F.embedding_bag(row_ids, self.table.rows, ends - counts, mode="mean")

        def apply_update(update: Tensor) -> None:
            summed = VectorTable(update.new_zeros(len(words), update.shape[1]))
            summed.add(inverse, update)
            self.table.add(row_ids, summed.rows.index_select(0, word_index))

        return vectors.index_select(0, inverse), apply_update
