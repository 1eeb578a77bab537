"""A Huffman tree over the words: frequent ones have short paths, and a word's chance is the product along its path."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Paths(NamedTuple):
    """Of every word: the inner nodes from the root down, and at each whether to turn right; padded to the longest.

    A word that never occurs has no path. Padding names the row behind the last node.
    """

    nodes: NDArray[np.int32]  # (words, longest)
    turns: NDArray[np.int8]  # (words, longest): 1 for right, 0 for left, -1 for padding

    @property
    def lengths(self) -> NDArray[np.int64]:
        return (self.turns >= 0).sum(1)


def huffman(counts: ArrayLike) -> Paths:
    """The tree with the fewest turns in a text with these counts; a word alone has one turn all the same."""
    counts = np.asarray(counts, np.int64)
    words = np.flatnonzero(counts)[np.argsort(counts[counts > 0], kind="stable")]  # the rarest first
    parents, rights = _joined(counts[words])
    number = np.full(len(counts), -1)
    number[words] = np.arange(len(words))
    return _walked(number, parents, rights, len(words))


def _joined(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
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


def _walked(number: NDArray[np.int64], parents: NDArray[np.int64], rights: NDArray[np.int8], leaves: int) -> Paths:
    """All words at once from leaf to root, then turned round."""
    at, upward = number.copy(), []
    while np.any(climbs := (at >= 0) & (parents[at] >= 0)):
        upward.append((np.where(climbs, parents[at] - leaves, -1), np.where(climbs, rights[at], -1)))
        at = np.where(climbs, parents[at], -1)
    nodes = np.stack([one for one, _ in reversed(upward)], 1)
    turns = np.stack([one for _, one in reversed(upward)], 1)
    left = np.argsort(turns < 0, 1, kind="stable")  # what a short path has not goes behind it
    nodes, turns = np.take_along_axis(nodes, left, 1), np.take_along_axis(turns, left, 1)
    nodes[turns < 0] = len(number)
    return Paths(nodes.astype(np.int32), turns.astype(np.int8))
