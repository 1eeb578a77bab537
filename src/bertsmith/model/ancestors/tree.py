"""Hierarchical softmax: a word is foretold turn by turn down a Huffman tree, every turn by the vector of its node."""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .chunks import Bands, Chunks
from .tables import Source, Step, Table


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
