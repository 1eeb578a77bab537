"""Hierarchical softmax head (Morin & Bengio 2005; word2vec): log-probabilities of words as paths in a binary tree."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import PosInt, Variant

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class HierarchicalSoftmaxHeadConfig(Variant, frozen=True, tag="hierarchical-softmax"):
    """Log-probability of every word: the sum of log-sigmoids along its path in the (Huffman) tree."""

    max_path_length: Annotated[PosInt, "length of the longest path in the Huffman tree"]

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "HierarchicalSoftmaxHead":
        return HierarchicalSoftmaxHead(self.max_path_length, encoder.hidden_size, vocab_size)


class HierarchicalSoftmaxHead(nn.Module):
    """log p(word) = sum over its path of log sigmoid(+-w_node . h).

    Buffers (vocab_size, max_path_length): `path_nodes`, the inner nodes on the path of each word, and `path_codes`, the
    branch taken at each (0 or 1; -1: padding).
    """

    path_nodes: Tensor
    path_codes: Tensor

    def __init__(self, max_path_length: int, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.node_embeddings = nn.Embedding(vocab_size + 1, hidden_size)  # one row for each inner node; the last is padding
        self.register_buffer("path_nodes", torch.full((vocab_size, max_path_length), vocab_size, dtype=torch.int32))
        self.register_buffer("path_codes", torch.full((vocab_size, max_path_length), -1, dtype=torch.int8))

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows, vocab_size): log-probabilities; -inf for words without a path, which the training text does not contain."""
        node_logits = F.linear(hidden_states, self.node_embeddings.weight)
        log_probs = node_logits.new_zeros(len(hidden_states), len(self.path_nodes))
        for nodes, branches in zip(
            self.path_nodes.T.long(), self.path_codes.T, strict=True
        ):  # one tree level at a time, for all words
            log_probs += torch.where(branches >= 0, F.logsigmoid(node_logits[:, nodes] * (1 - 2 * branches)), 0)
        return log_probs.masked_fill(self.path_codes[:, 0] < 0, float("-inf"))
