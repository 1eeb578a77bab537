"""A corpus in stretches, for what learns from neighbours: frequent words thinned out, windows drawn, noise beside them."""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.store import Corpus
from ..model.ancestors.chunks import Chunks
from ..model.ancestors.dice import drawn, top

STRETCH = 1 << 20  # words of one, at most
EPOCH = 8  # stretches of an epoch, at least
TABLE = 22  # bits: the noise is drawn from a table of four million words, each as often as its share
Counts = NDArray[np.int64]


class Reading(NamedTuple):
    """How text is read, whatever is learnt from it."""

    window: int
    words: int  # of a chunk
    noise: int  # words drawn for a chunk
    sample: float
    power: float = 0.75


class Stretches:
    """Stretch k is a function of the corpus, the seed and k alone: on a CPU and a GPU the same, whoever asks."""

    def __init__(self, corpus: Corpus, counts: Counts, reading: Reading, seed: int, device: torch.device) -> None:
        """Words that `counts` has none of are passed over, as if the text were without them."""
        self.corpus, self.reading, self.seed, self.device = corpus, reading, seed, device
        size = len(corpus.tokens)
        self.an_epoch = max(math.ceil(size / STRETCH), min(EPOCH, size // 4096), 1)
        self.kept = kept(counts, reading.sample)
        self.share = shares(counts * self.kept)
        self.wrong = shares(counts.astype(np.float64) ** reading.power)
        self._keep = torch.from_numpy((self.kept * 2**31).astype(np.int64)).to(device)
        self._noise = table(self.wrong).to(device) if reading.noise else None

    def __call__(self, k: int) -> tuple[Chunks, int]:
        """The chunks of a stretch, and how many words of the corpus they were made from."""
        epoch, nth = divmod(k, self.an_epoch)
        first, last = (len(self.corpus.tokens) * i // self.an_epoch for i in (nth, nth + 1))
        ids = torch.from_numpy(self.corpus.tokens[first:last].astype(np.int32)).to(self.device)
        dice = drawn(self.seed, "neighbours", epoch, first, last - first, self.device)
        stays = (top(dice, 31) < self._keep[ids]).nonzero().squeeze(1)
        sides = self._sides(self._sentences(first, last).index_select(0, stays), dice.index_select(0, stays))
        return self._cut(ids.index_select(0, stays).long(), sides, k), last - first

    def _sentences(self, first: int, last: int) -> Tensor:
        """(words,): a number for the sentence of each."""
        starts = self.corpus.sentences
        inside = starts[np.searchsorted(starts, first, "right") : np.searchsorted(starts, last, "left")] - first
        marks = torch.zeros(last - first, dtype=torch.int32, device=self.device)
        return marks.index_fill_(0, torch.from_numpy(np.unique(inside)).to(self.device), 1).cumsum(0)

    def _sides(self, sentences: Tensor, dice: Tensor) -> Tensor:
        """(words,): how far each sees, in `Chunks.sides`: a window of 1 up to the whole, within its sentence."""
        window, count = self.reading.window, len(sentences)
        places = torch.arange(count, device=self.device)
        begins = F.pad(sentences[1:] != sentences[:-1], (1, 0), value=True)[:count]
        first = torch.where(begins, places, 0).cummax(0).values
        last = torch.where(begins, places, count).roll(-1)
        last[-1:] = count
        last = last.flip(0).cummin(0).values.flip(0) - 1
        reach = (dice & 0xFFFF).mul_(window).bitwise_right_shift_(16).add_(1)
        return torch.minimum(reach, places - first) * (window + 1) + torch.minimum(reach, last - places)

    def _cut(self, ids: Tensor, sides: Tensor, k: int) -> Chunks:
        window, words, noise, *_ = self.reading
        if not len(ids):  # not one known word
            return Chunks(*(ids.new_zeros(0, size) for size in (words + 2 * window, words, noise)))
        chunks = -(-len(ids) // words)
        rest = chunks * words - len(ids)
        around = F.pad(ids, (window, window + rest)).unfold(0, words + 2 * window, words)
        drawn_noise = ids.new_zeros(chunks, 0)
        if self._noise is not None:
            dice = drawn(self.seed, "noise", k, 0, chunks * noise, self.device)
            drawn_noise = self._noise[top(dice, TABLE)].view(chunks, noise).long()
        return Chunks(around[:chunks], F.pad(sides, (0, rest)).view(chunks, words), drawn_noise)


def kept(counts: Counts, sample: float) -> NDArray[np.float64]:
    """The chance of each word to stay: sqrt(t / f) + t / f for one of the share f, where that is below 1; t = 0 keeps all."""
    if not sample:
        return (counts > 0).astype(np.float64)
    share = sample / np.maximum(counts / max(1, counts.sum()), 1e-300)
    return np.minimum(1.0, np.sqrt(share) + share) * (counts > 0)


def shares(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return weights / max(float(weights.sum()), 1e-300)


def table(share: NDArray[np.float64], bits: int = TABLE) -> Tensor:
    """(2 ** bits,): every word as often as its share of them."""
    places = (np.arange(1 << bits) + 0.5) / (1 << bits)
    found = np.searchsorted(share.cumsum(), places * share.sum(), "right")
    return torch.from_numpy(np.minimum(found, np.flatnonzero(share)[-1]).astype(np.int32))
