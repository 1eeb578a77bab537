"""The dice of `bertsmith.rng` drawn on a tensor's own device: the same bits, wherever."""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.store import Corpus
from ..rng import Stream, bits

# 64-bit words are signed here: products and xor are the same, but a shift to the right must not bring the sign along.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def drawn(seed: int, purpose: str, epoch: int, first: int, count: int, device: torch.device) -> Tensor:
    """`random.bits(seed, purpose, epoch, range(first, first + count))` as signed words."""
    state = int(bits(seed, purpose, epoch).astype(np.int64))
    counters = torch.arange(first, first + count, device=device)
    return _mixed(_mixed(counters.mul_(_STEP).add_(_STEP)).bitwise_xor_(state))


def top(dice: Tensor, width: int) -> Tensor:
    """The `width` bits at the top of each, as a whole number."""
    return (dice >> (64 - width)).bitwise_and_((1 << width) - 1)


def _mixed(x: Tensor) -> Tensor:
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        x.bitwise_xor_(top(x, 64 - shift))
        if factor != 1:
            x.mul_(factor)
    return x


class Chunks(NamedTuple):
    """`sides` says of each word how many it sees to its left and right: left * (window + 1) + right, 0 for padding."""

    around: Tensor  # (chunks, window + words + window): ids
    sides: Tensor  # (chunks, words)
    noise: Tensor  # (chunks, drawn): ids to be told from the real ones, drawn once for all words of a chunk

    @property
    def centres(self) -> Tensor:
        """(chunks, words): ids."""
        window = (self.around.shape[1] - self.sides.shape[1]) // 2
        return self.around[:, window : window + self.sides.shape[1]]

    def dealt(self, hands: int) -> list["Chunks"]:
        """As cards are, one to each in turns: what a page says again and again is not learnt all at once."""
        order = torch.argsort(torch.arange(len(self.sides), device=self.sides.device) % hands, stable=True)
        return [Chunks(*some) for some in zip(*(part[order].tensor_split(hands) for part in self), strict=True)]


class Bands:
    """Masks of what is near, looked up: one row for each way to see so many words to the left and right."""

    def __init__(self, window: int, words: int, device: torch.device | str = "cpu") -> None:
        steps, reach = torch.arange(-window, window + 1), torch.arange(window + 1)
        seen = (steps >= -reach[:, None, None]) & (steps <= reach[None, :, None]) & (steps != 0)
        self.seen = seen.view(-1, 2 * window + 1).float().to(device)  # (ways, window + 1 + window)
        self.number = self.seen.sum(1)
        band = torch.zeros(len(self.seen), words, words + 2 * window)
        for place in range(words):
            band[:, place, place : place + 2 * window + 1] = self.seen.cpu()
        self.band = band.view(-1, words + 2 * window).to(device)
        self.mean = self.band / self.band.sum(1, keepdim=True).clamp(min=1)
        self.places = torch.arange(words, device=device)

    def near(self, sides: Tensor) -> Tensor:
        """(chunks, words, around): 1 where a word of `around` is seen."""
        return self._rows(self.band, sides)

    def averaged(self, sides: Tensor) -> Tensor:
        """The same, each row divided by what it sees."""
        return self._rows(self.mean, sides)

    def counted(self, sides: Tensor) -> Tensor:
        """(chunks, words, 1): how many each word sees."""
        return self.number.take(sides)[..., None]

    def _rows(self, table: Tensor, sides: Tensor) -> Tensor:
        which = sides * len(self.places) + self.places
        return table.index_select(0, which.flatten()).view(*sides.shape, -1)


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
        dice = drawn(self.seed, Stream.WORD2VEC_WINDOWS, epoch, first, last - first, self.device)
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
            dice = drawn(self.seed, Stream.WORD2VEC_NEGATIVES, k, 0, chunks * noise, self.device)
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
