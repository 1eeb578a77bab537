"""A head that scores words turn by turn down a tree: their scores are logarithms of chances that add up to one."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import Count, Variant

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class TreeHead(Variant, frozen=True, tag="tree"):
    """A score for every word, by its path through a tree: hierarchical softmax."""

    longest: Annotated[Count, "turns of the longest path"]

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "TreeScores":
        return TreeScores(self.longest, encoder.width, vocabulary)


class TreeScores(nn.Module):
    nodes: Tensor
    turns: Tensor

    def __init__(self, longest: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary + 1, width)  # the row behind the last is of padding
        self.register_buffer("nodes", torch.full((vocabulary, longest), vocabulary, dtype=torch.int32))
        self.register_buffer("turns", torch.full((vocabulary, longest), -1, dtype=torch.int8))

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, words); a word without a path, which no text has, has no chance."""
        scores = F.linear(rows, self.table.weight)
        total = scores.new_zeros(len(rows), len(self.nodes))
        for nodes, turns in zip(self.nodes.T.long(), self.turns.T, strict=True):  # a turn of all words at a time
            total += torch.where(turns >= 0, F.logsigmoid(scores[:, nodes] * (1 - 2 * turns)), 0)
        return total.masked_fill(self.turns[:, 0] < 0, float("-inf"))
