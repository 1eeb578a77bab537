"""A Huffman tree over the words: frequent ones have short paths, and a word's chance is the product along its path."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .tables import Source, Step, Table
from .windows import Bands, Chunks


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


class Tree(NamedTuple):
    outputs: Table  # a row for every node, and one for the padding of paths
    nodes: Tensor  # (words, longest)
    turns: Tensor  # (words, longest): 1 for right, 0 for left, -1 for padding

    def skip_gram(self, chunks: Chunks, bands: Bands, inputs: Source, rate: float, told: bool) -> Step:
        """Each word that is seen foretells the one in the middle, whose path is then walked once for all of them."""
        rows, put = inputs.open(chunks.around.flatten())
        u = rows.view(*chunks.around.shape, -1)
        window = bands.seen.shape[1] // 2
        seen = u.unfold(1, 2 * window + 1, 1).flatten(0, 1).mT  # (words, window + 1 + window, width)
        nodes, turns = (one.index_select(0, chunks.centres.flatten()) for one in (self.nodes, self.turns))
        v, put_v = self.outputs.open(nodes.flatten())
        v, turns = v.view(*nodes.shape, -1), turns[..., None]  # (words, longest, width), (words, longest, 1)
        mask = bands.seen.index_select(0, chunks.sides.flatten())[:, None] * (turns >= 0)
        slope, cost = _turned(v @ seen.mT, turns, rate, mask[:, :1].sum() if told else None, mask)
        change = _laid(slope.mT @ v, chunks, window).flatten(0, 1)
        return Step([partial(put, change)], [partial(put_v, (slope @ seen).flatten(0, 1))], cost)

    def cbow(self, chunks: Chunks, bands: Bands, inputs: Source, rate: float, told: bool) -> Step:
        """The mean of what it sees foretells the word in the middle."""
        rows, put = inputs.open(chunks.around.flatten())
        mean = bands.averaged(chunks.sides)
        hidden = (mean @ rows.view(*chunks.around.shape, -1)).flatten(0, 1)  # (words, width)
        nodes, turns, sizes = self._walked(chunks)
        v, _ = self.outputs.open(nodes)  # (turns of all words, width)
        seen = hidden.index_select(0, torch.repeat_interleave(sizes))
        slope, cost = _turned(v.mul_(seen).sum(1), turns, rate, (sizes > 0).sum() if told else None)
        change = self.outputs.summed(nodes, sizes.cumsum(0) - sizes, slope).view(*chunks.sides.shape, -1)
        moved = partial(self.outputs.add, nodes, seen, slope[:, None])
        return Step([partial(put, (mean.mT @ change).flatten(0, 1))], [moved], cost)

    def _walked(self, chunks: Chunks) -> tuple[Tensor, Tensor, Tensor]:
        """The nodes and turns of all words that see others, one path after another, and (words,) how long each is."""
        nodes, turns = (one.index_select(0, chunks.centres.flatten()) for one in (self.nodes, self.turns))
        real = (turns >= 0).logical_and_((chunks.sides > 0).view(-1, 1))
        which = real.flatten().nonzero().squeeze(1)
        return nodes.flatten().index_select(0, which), turns.flatten().index_select(0, which), real.sum(1)


def _turned(
    scores: Tensor, turns: Tensor, rate: float, foretold: Tensor | None, mask: Tensor | float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """The step of every score, to the left with the chance sigmoid(score), and the mean loss, if it is told how many were
    foretold."""
    cost = None
    if foretold is not None:
        cost = -(F.logsigmoid(scores * (1 - 2 * turns)) * mask).sum() / foretold.clamp(min=1)
    return (1 - turns - scores.sigmoid()).mul_(mask).mul_(rate), cost


def _laid(change: Tensor, chunks: Chunks, window: int) -> Tensor:
    """(words, window + 1 + window, width) laid over one another where windows overlap: (chunks, around, width)."""
    words = chunks.sides.shape[1]
    change = change.view(len(chunks.sides), words, 2 * window + 1, -1)
    total = change.new_zeros(*chunks.around.shape, change.shape[-1])
    for step in range(2 * window + 1):
        total[:, step : step + words] += change[:, :, step]
    return total
