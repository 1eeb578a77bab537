"""A Huffman tree over the words: frequent ones have short paths, and a word's chance is the product along its path."""

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
    """Of every word: the inner nodes from the root down, and at each whether to turn right; padded to the longest.

    A word that never occurs has no path. Padding names the row behind the last node.
    """

    nodes: NDArray[np.int32]  # (words, longest)
    codes: NDArray[np.int8]  # (words, longest): 1 for right, 0 for left, -1 for padding

    @property
    def lengths(self) -> NDArray[np.int64]:
        return (self.codes >= 0).sum(1)


def build_huffman_paths(counts: ArrayLike) -> HuffmanPaths:
    """The tree with the fewest turns in a text with these counts; a word alone has one turn all the same."""
    counts = np.asarray(counts, np.int64)
    words = np.flatnonzero(counts)[np.argsort(counts[counts > 0], kind="stable")]  # the rarest first
    parents, rights = _build_tree(counts[words])
    number = np.full(len(counts), -1)
    number[words] = np.arange(len(words))
    return _collect_paths(number, parents, rights, len(words))


def _build_tree(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """The parent of every leaf and node, and whether it hangs at its right: the two lightest are joined, again and again.

    Leaves come sorted and nodes are made in order of their weight, so that two queues are enough and no heap is needed.
    """
    leaves = len(counts)
    weights, size = [*counts.tolist(), *[0] * max(leaves - 1, 1)], 2 * leaves - 1
    parents, rights = np.full(len(weights), -1), np.zeros(len(weights), np.int8)
    leaf, node = 0, leaves
    for made in range(leaves, size):
        for right in (0, 1):
            if leaf < leaves and (node == made or weights[leaf] <= weights[node]):
                lightest, leaf = leaf, leaf + 1
            else:
                lightest, node = node, node + 1
            weights[made] += weights[lightest]
            parents[lightest], rights[lightest] = made, right
    if leaves == 1:
        parents[0] = 1
    return parents, rights


def _collect_paths(
    leaf_of_word: NDArray[np.int64], parents: NDArray[np.int64], rights: NDArray[np.int8], num_leaves: int
) -> HuffmanPaths:
    """All words at once from leaf to root, then turned round."""
    at, upward = leaf_of_word.copy(), []
    while np.any(climbs := (at >= 0) & (parents[at] >= 0)):
        upward.append((np.where(climbs, parents[at] - num_leaves, -1), np.where(climbs, rights[at], -1)))
        at = np.where(climbs, parents[at], -1)
    nodes = np.stack([one for one, _ in reversed(upward)], 1)
    turns = np.stack([one for _, one in reversed(upward)], 1)
    left = np.argsort(turns < 0, 1, kind="stable")  # what a short path has not goes behind it
    nodes, turns = np.take_along_axis(nodes, left, 1), np.take_along_axis(turns, left, 1)
    nodes[turns < 0] = len(leaf_of_word)
    return HuffmanPaths(nodes.astype(np.int32), turns.astype(np.int8))


class HierarchicalSoftmax(NamedTuple):
    outputs: VectorTable  # a row for every node, and one for the padding of paths
    nodes: Tensor  # (words, longest)
    codes: Tensor  # (words, longest): 1 for right, 0 for left, -1 for padding

    def skip_gram(
        self, chunks: Chunks, window_masks: WindowMasks, inputs: RowSource, lr: float, compute_loss: bool
    ) -> StepUpdates:
        """Each word that is seen foretells the one in the middle, whose path is then walked once for all of them."""
        rows, put = inputs.gather(chunks.context_ids.flatten())
        u = rows.view(*chunks.context_ids.shape, -1)
        window = window_masks.offset_masks.shape[1] // 2
        seen = u.unfold(1, 2 * window + 1, 1).flatten(0, 1).mT  # (words, window + 1 + window, width)
        nodes, turns = (one.index_select(0, chunks.center_ids.flatten()) for one in (self.nodes, self.codes))
        v, put_v = self.outputs.gather(nodes.flatten())
        v, turns = v.view(*nodes.shape, -1), turns[..., None]  # (words, longest, width), (words, longest, 1)
        mask = window_masks.offset_masks.index_select(0, chunks.extents.flatten())[:, None] * (turns >= 0)
        slope, cost = _node_grads(v @ seen.mT, turns, lr, mask[:, :1].sum() if compute_loss else None, mask)
        change = _overlap_add(slope.mT @ v, chunks, window).flatten(0, 1)
        return StepUpdates([partial(put, change)], [partial(put_v, (slope @ seen).flatten(0, 1))], cost)

    def cbow(self, chunks: Chunks, window_masks: WindowMasks, inputs: RowSource, lr: float, compute_loss: bool) -> StepUpdates:
        """The mean of what it sees foretells the word in the middle."""
        rows, put = inputs.gather(chunks.context_ids.flatten())
        mean = window_masks.mean_weights(chunks.extents)
        hidden = (mean @ rows.view(*chunks.context_ids.shape, -1)).flatten(0, 1)  # (words, width)
        nodes, turns, sizes = self._flat_paths(chunks)
        v, _ = self.outputs.gather(nodes)  # (turns of all words, width)
        seen = hidden.index_select(0, torch.repeat_interleave(sizes))
        slope, cost = _node_grads(v.mul_(seen).sum(1), turns, lr, (sizes > 0).sum() if compute_loss else None)
        change = self.outputs.sum_rows(nodes, sizes.cumsum(0) - sizes, slope).view(*chunks.extents.shape, -1)
        moved = partial(self.outputs.add, nodes, seen, slope[:, None])
        return StepUpdates([partial(put, (mean.mT @ change).flatten(0, 1))], [moved], cost)

    def _flat_paths(self, chunks: Chunks) -> tuple[Tensor, Tensor, Tensor]:
        """The nodes and turns of all words that see others, one path after another, and (words,) how long each is."""
        nodes, turns = (one.index_select(0, chunks.center_ids.flatten()) for one in (self.nodes, self.codes))
        real = (turns >= 0).logical_and_((chunks.extents > 0).view(-1, 1))
        which = real.flatten().nonzero().squeeze(1)
        return nodes.flatten().index_select(0, which), turns.flatten().index_select(0, which), real.sum(1)


def _node_grads(
    logits: Tensor, codes: Tensor, lr: float, num_predicted: Tensor | None, mask: Tensor | float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """The step of every score, to the left with the chance sigmoid(score), and the mean loss, if it is told how many were
    foretold."""
    cost = None
    if num_predicted is not None:
        cost = -(F.logsigmoid(logits * (1 - 2 * codes)) * mask).sum() / num_predicted.clamp(min=1)
    return (1 - codes - logits.sigmoid()).mul_(mask).mul_(lr), cost


def _overlap_add(updates: Tensor, chunks: Chunks, window: int) -> Tensor:
    """(words, window + 1 + window, width) laid over one another where windows overlap: (chunks, around, width)."""
    words = chunks.extents.shape[1]
    updates = updates.view(len(chunks.extents), words, 2 * window + 1, -1)
    total = updates.new_zeros(*chunks.context_ids.shape, updates.shape[-1])
    for step in range(2 * window + 1):
        total[:, step : step + words] += updates[:, :, step]
    return total
