"""Hierarchical softmax over a Huffman tree (Morin & Bengio 2005; Mikolov et al. 2013).

The probability of a word is the product of binary decisions along its path; frequent words have short paths.

- build_huffman_paths: the path of each word
- HierarchicalSoftmax: updates of skip-gram and CBOW
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .tables import RowSource, StepUpdates, VectorTable
from .windows import Chunks, WindowMasks


class HuffmanPaths(NamedTuple):
    """Path of each word from the root: inner nodes, and the branch taken at each; padded to the longest path.

    A word with count 0 has an empty path. Padding has code -1 and node index `words`, an extra row of the output table.
    """

    nodes: NDArray[np.int32]  # (words, max length)
    codes: NDArray[np.int8]  # (words, max length): 1 for right, 0 for left, -1 for padding

    @property
    def lengths(self) -> NDArray[np.int64]:
        return (self.codes >= 0).sum(1)


def build_huffman_paths(counts: ArrayLike) -> HuffmanPaths:
    """Huffman tree of the word counts; a single word still has a path of one node."""
    counts = np.asarray(counts, np.int64)
    words = np.flatnonzero(counts)[np.argsort(counts[counts > 0], kind="stable")]  # rarest first
    parents, rights = _build_tree(counts[words])
    leaf_of_word = np.full(len(counts), -1)
    leaf_of_word[words] = np.arange(len(words))
    return _collect_paths(leaf_of_word, parents, rights, len(words))


def _build_tree(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Parent of each leaf and inner node, and whether it is a right child: repeatedly merges the two of least weight.

    Leaves are sorted and inner nodes are created in order of weight, so two queues suffice instead of a heap.
    """
    leaves = len(counts)
    weights, num_nodes = [*counts.tolist(), *[0] * max(leaves - 1, 1)], 2 * leaves - 1
    parents, is_right = np.full(len(weights), -1), np.zeros(len(weights), np.int8)
    next_leaf, next_node = 0, leaves
    for parent in range(leaves, num_nodes):
        for side in (0, 1):
            if next_leaf < leaves and (next_node == parent or weights[next_leaf] <= weights[next_node]):
                lightest, next_leaf = next_leaf, next_leaf + 1
            else:
                lightest, next_node = next_node, next_node + 1
            weights[parent] += weights[lightest]
            parents[lightest], is_right[lightest] = parent, side
    if leaves == 1:
        parents[0] = 1
    return parents, is_right


def _collect_paths(
    leaf_of_word: NDArray[np.int64], parents: NDArray[np.int64], rights: NDArray[np.int8], num_leaves: int
) -> HuffmanPaths:
    """Walks from all leaves to the root at once, then reverses the paths."""
    current, steps = leaf_of_word.copy(), []
    while np.any(has_parent := (current >= 0) & (parents[current] >= 0)):
        steps.append((np.where(has_parent, parents[current] - num_leaves, -1), np.where(has_parent, rights[current], -1)))
        current = np.where(has_parent, parents[current], -1)
    nodes = np.stack([column for column, _ in reversed(steps)], 1)
    codes = np.stack([column for _, column in reversed(steps)], 1)
    order = np.argsort(codes < 0, 1, kind="stable")  # padding to the end
    nodes, codes = np.take_along_axis(nodes, order, 1), np.take_along_axis(codes, order, 1)
    nodes[codes < 0] = len(leaf_of_word)
    return HuffmanPaths(nodes.astype(np.int32), codes.astype(np.int8))


class HierarchicalSoftmax(NamedTuple):
    """Output layer with a logit per inner node; P(left) = sigmoid(logit)."""

    outputs: VectorTable  # a row per inner node, and one for padding
    nodes: Tensor  # (words, max length)
    codes: Tensor  # (words, max length): 1 for right, 0 for left, -1 for padding

    def skip_gram(
        self, chunks: Chunks, window_masks: WindowMasks, inputs: RowSource, lr: float, compute_loss: bool
    ) -> StepUpdates:
        """Each context word predicts the center word (as word2vec.c does), whose path is gathered once for all of them."""
        context_rows, apply_input = inputs.gather(chunks.context_ids.flatten())
        context = context_rows.view(*chunks.context_ids.shape, -1)
        window = window_masks.offset_masks.shape[1] // 2
        windows = context.unfold(1, 2 * window + 1, 1).flatten(0, 1).mT  # (words, 2 * window + 1, vector_size)
        nodes, codes = (table.index_select(0, chunks.center_ids.flatten()) for table in (self.nodes, self.codes))
        node_vectors, apply_output = self.outputs.gather(nodes.flatten())
        node_vectors = node_vectors.view(*nodes.shape, -1)  # (words, max length, vector_size)
        codes = codes[..., None]  # (words, max length, 1)
        mask = window_masks.offset_masks.index_select(0, chunks.extents.flatten())[:, None] * (codes >= 0)
        node_updates, loss = _node_grads(
            node_vectors @ windows.mT, codes, lr, mask[:, :1].sum() if compute_loss else None, mask
        )
        input_updates = _overlap_add(node_updates.mT @ node_vectors, chunks, window).flatten(0, 1)
        return StepUpdates(
            [partial(apply_input, input_updates)], [partial(apply_output, (node_updates @ windows).flatten(0, 1))], loss
        )

    def cbow(self, chunks: Chunks, window_masks: WindowMasks, inputs: RowSource, lr: float, compute_loss: bool) -> StepUpdates:
        """The mean of the context vectors predicts the center word."""
        context_rows, apply_input = inputs.gather(chunks.context_ids.flatten())
        mean_weights = window_masks.mean_weights(chunks.extents)
        hidden = (mean_weights @ context_rows.view(*chunks.context_ids.shape, -1)).flatten(0, 1)  # (words, vector_size)
        nodes, codes, path_lengths = self._flat_paths(chunks)
        node_vectors, _ = self.outputs.gather(nodes)  # (path nodes of all words, vector_size)
        hidden_per_node = hidden.index_select(0, torch.repeat_interleave(path_lengths))
        node_updates, loss = _node_grads(
            node_vectors.mul_(hidden_per_node).sum(1), codes, lr, (path_lengths > 0).sum() if compute_loss else None
        )
        hidden_updates = self.outputs.sum_rows(nodes, path_lengths.cumsum(0) - path_lengths, node_updates).view(
            *chunks.extents.shape, -1
        )
        apply_output = partial(self.outputs.add, nodes, hidden_per_node, node_updates[:, None])
        return StepUpdates([partial(apply_input, (mean_weights.mT @ hidden_updates).flatten(0, 1))], [apply_output], loss)

    def _flat_paths(self, chunks: Chunks) -> tuple[Tensor, Tensor, Tensor]:
        """Concatenated path nodes and codes of all center words with a context, and the path lengths (words,)."""
        nodes, codes = (table.index_select(0, chunks.center_ids.flatten()) for table in (self.nodes, self.codes))
        is_node = (codes >= 0).logical_and_((chunks.extents > 0).view(-1, 1))
        indices = is_node.flatten().nonzero().squeeze(1)
        return nodes.flatten().index_select(0, indices), codes.flatten().index_select(0, indices), is_node.sum(1)


def _node_grads(
    logits: Tensor, codes: Tensor, lr: float, num_predicted: Tensor | None, mask: Tensor | float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """lr times the negative gradient by each logit, and the mean loss per predicted word (None without `num_predicted`)."""
    loss = None
    if num_predicted is not None:
        loss = -(F.logsigmoid(logits * (1 - 2 * codes)) * mask).sum() / num_predicted.clamp(min=1)
    return (1 - codes - logits.sigmoid()).mul_(mask).mul_(lr), loss


def _overlap_add(updates: Tensor, chunks: Chunks, window: int) -> Tensor:
    """Sums updates of overlapping windows: (words, 2 * window + 1, vector_size) -> (chunks, context, vector_size)."""
    chunk_words = chunks.extents.shape[1]
    updates = updates.view(len(chunks.extents), chunk_words, 2 * window + 1, -1)
    total = updates.new_zeros(*chunks.context_ids.shape, updates.shape[-1])
    for offset in range(2 * window + 1):
        total[:, offset : offset + chunk_words] += updates[:, :, offset]
    return total
