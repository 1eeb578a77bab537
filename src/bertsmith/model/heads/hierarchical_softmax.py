"""A head that scores words turn by turn down a tree: their scores are logarithms of chances that add up to one."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosInt, Variant

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class HierarchicalSoftmaxHeadConfig(Variant, frozen=True, tag="tree"):
    """A score for every word, by its path through a tree: hierarchical softmax."""

    longest: Annotated[PosInt, "turns of the longest path"]

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "HierarchicalSoftmaxHead":
        return HierarchicalSoftmaxHead(self.longest, encoder.width, vocab_size)


class HierarchicalSoftmaxHead(nn.Module):
    nodes: Tensor
    turns: Tensor

    def __init__(self, max_path_length: int, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size + 1, hidden_size)  # the row behind the last is of padding
        self.register_buffer("nodes", torch.full((vocab_size, max_path_length), vocab_size, dtype=torch.int32))
        self.register_buffer("turns", torch.full((vocab_size, max_path_length), -1, dtype=torch.int8))

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, words); a word without a path, which no text has, has no chance."""
        scores = F.linear(hidden_states, self.table.weight)
        total = scores.new_zeros(len(hidden_states), len(self.nodes))
        for nodes, turns in zip(self.nodes.T.long(), self.turns.T, strict=True):  # a turn of all words at a time
            total += torch.where(turns >= 0, F.logsigmoid(scores[:, nodes] * (1 - 2 * turns)), 0)
        return total.masked_fill(self.turns[:, 0] < 0, float("-inf"))
