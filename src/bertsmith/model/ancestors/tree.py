"""Hierarchical softmax: a word is foretold turn by turn down a Huffman tree, every turn by the vector of its node."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from .chunks import Bands, Chunks
from .tables import Put, Source


class Tree(NamedTuple):
    outputs: Source  # a row for every node, and one for the padding of paths
    nodes: Tensor  # (words, longest)
    turns: Tensor  # (words, longest): 1 for right, 0 for left, -1 for padding

    def skip_gram(self, chunks: Chunks, bands: Bands, inputs: Source, rate: float, told: bool) -> Tensor | None:
        """Each word that is seen foretells the one in the middle, whose path is then walked once for all of them."""
        rows, put = inputs.open(chunks.around.flatten())
        u = rows.view(*chunks.around.shape, -1)
        window = bands.seen.shape[1] // 2
        seen = u.unfold(1, 2 * window + 1, 1).flatten(0, 1).mT  # (words, window + 1 + window, width)
        v, turns, put_v = self._paths(chunks.centres.flatten())
        mask = bands.seen.index_select(0, chunks.sides.flatten())[:, None] * (turns >= 0)
        slope, cost = _turned(v @ seen.mT, turns, mask, rate, told)
        put(_laid(slope.mT @ v, chunks, window).flatten(0, 1))
        put_v((slope @ seen).flatten(0, 1))
        return cost

    def cbow(self, chunks: Chunks, bands: Bands, inputs: Source, rate: float, told: bool) -> Tensor | None:
        """The mean of what it sees foretells the word in the middle."""
        rows, put = inputs.open(chunks.around.flatten())
        mean = bands.averaged(chunks.sides)
        hidden = (mean @ rows.view(*chunks.around.shape, -1)).flatten(0, 1)[:, None]  # (words, 1, width)
        v, turns, put_v = self._paths(chunks.centres.flatten())
        mask = (chunks.sides.flatten() > 0)[:, None, None] * (turns >= 0)
        slope, cost = _turned(v @ hidden.mT, turns, mask, rate, told)
        put((mean.mT @ (slope.mT @ v).view(*chunks.sides.shape, -1)).flatten(0, 1))
        put_v((slope @ hidden).flatten(0, 1))
        return cost

    def _paths(self, words: Tensor) -> tuple[Tensor, Tensor, Put]:
        """(words, longest, width) of the nodes, (words, longest, 1) of the turns, and what moves the nodes."""
        nodes = self.nodes.index_select(0, words)
        rows, put = self.outputs.open(nodes.flatten())
        return rows.view(*nodes.shape, -1), self.turns.index_select(0, words)[..., None], put


def _turned(scores: Tensor, turns: Tensor, mask: Tensor, rate: float, told: bool) -> tuple[Tensor, Tensor | None]:
    """The step of every score, and the mean loss of a foretold word: to the left has the chance sigmoid(score)."""
    cost = None
    if told:
        foretold = mask[:, :1].sum().clamp(min=1)  # every path has a first turn
        cost = -(F.logsigmoid(scores * (1 - 2 * turns)) * mask).sum() / foretold
    return (1 - turns - scores.sigmoid()).mul_(mask).mul_(rate), cost


def _laid(change: Tensor, chunks: Chunks, window: int) -> Tensor:
    """(words, window + 1 + window, width) laid over one another where windows overlap: (chunks, around, width)."""
    words = chunks.sides.shape[1]
    change = change.view(len(chunks.sides), words, 2 * window + 1, -1)
    total = change.new_zeros(*chunks.around.shape, change.shape[-1])
    for step in range(2 * window + 1):
        total[:, step : step + words] += change[:, :, step]
    return total
