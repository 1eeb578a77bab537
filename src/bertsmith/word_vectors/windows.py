"""The dice of `bertsmith.rng` drawn on a tensor's own device: the same bits, wherever."""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.store import Corpus
from ..rng import Stream, random_bits

# 64-bit words are signed here: products and xor are the same, but a shift to the right must not bring the sign along.
_SPLITMIX_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def device_random_bits(seed: int, purpose: str, epoch: int, first: int, count: int, device: torch.device) -> Tensor:
    """`random.bits(seed, purpose, epoch, range(first, first + count))` as signed words."""
    state = int(random_bits(seed, purpose, epoch).astype(np.int64))
    counters = torch.arange(first, first + count, device=device)
    return _mix64(_mix64(counters.mul_(_SPLITMIX_INCREMENT).add_(_SPLITMIX_INCREMENT)).bitwise_xor_(state))


def top_bits(values: Tensor, num_bits: int) -> Tensor:
    """The `width` bits at the top of each, as a whole number."""
    return (values >> (64 - num_bits)).bitwise_and_((1 << num_bits) - 1)


def _mix64(x: Tensor) -> Tensor:
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        x.bitwise_xor_(top_bits(x, 64 - shift))
        if factor != 1:
            x.mul_(factor)
    return x


class Chunks(NamedTuple):
    """`sides` says of each word how many it sees to its left and right: left * (window + 1) + right, 0 for padding."""

    context_ids: Tensor  # (chunks, window + words + window): ids
    extents: Tensor  # (chunks, words)
    noise_ids: Tensor  # (chunks, drawn): ids to be told from the real ones, drawn once for all words of a chunk

    @property
    def center_ids(self) -> Tensor:
        """(chunks, words): ids."""
        window = (self.context_ids.shape[1] - self.extents.shape[1]) // 2
        return self.context_ids[:, window : window + self.extents.shape[1]]

    def interleave(self, num_groups: int) -> list["Chunks"]:
        """As cards are, one to each in turns: what a page says again and again is not learnt all at once."""
        order = torch.argsort(torch.arange(len(self.extents), device=self.extents.device) % num_groups, stable=True)
        return [Chunks(*some) for some in zip(*(part[order].tensor_split(num_groups) for part in self), strict=True)]


class WindowMasks:
    """Masks of what is near, looked up: one row for each way to see so many words to the left and right."""

    def __init__(self, window: int, chunk_words: int, device: torch.device | str = "cpu") -> None:
        steps, reach = torch.arange(-window, window + 1), torch.arange(window + 1)
        seen = (steps >= -reach[:, None, None]) & (steps <= reach[None, :, None]) & (steps != 0)
        self.offset_masks = seen.view(-1, 2 * window + 1).float().to(device)  # (ways, window + 1 + window)
        self.context_sizes = self.offset_masks.sum(1)
        band = torch.zeros(len(self.offset_masks), chunk_words, chunk_words + 2 * window)
        for place in range(chunk_words):
            band[:, place, place : place + 2 * window + 1] = self.offset_masks.cpu()
        self.band_masks = band.view(-1, chunk_words + 2 * window).to(device)
        self.mean_band = self.band_masks / self.band_masks.sum(1, keepdim=True).clamp(min=1)
        self.positions = torch.arange(chunk_words, device=device)

    def context_mask(self, extents: Tensor) -> Tensor:
        """(chunks, words, around): 1 where a word of `around` is seen."""
        return self._lookup(self.band_masks, extents)

    def mean_weights(self, extents: Tensor) -> Tensor:
        """The same, each row divided by what it sees."""
        return self._lookup(self.mean_band, extents)

    def context_counts(self, extents: Tensor) -> Tensor:
        """(chunks, words, 1): how many each word sees."""
        return self.context_sizes.take(extents)[..., None]

    def _lookup(self, table: Tensor, extents: Tensor) -> Tensor:
        which = extents * len(self.positions) + self.positions
        return table.index_select(0, which.flatten()).view(*extents.shape, -1)


SHARD_WORDS = 1 << 20  # words of one, at most
MIN_SHARDS = 8  # stretches of an epoch, at least
NOISE_TABLE_BITS = 22  # bits: the noise is drawn from a table of four million words, each as often as its share
WordCounts = NDArray[np.int64]


class SamplingConfig(NamedTuple):
    """How text is read, whatever is learnt from it."""

    window: int
    chunk_words: int  # of a chunk
    noise_words: int  # words drawn for a chunk
    sample: float
    ns_exponent: float = 0.75


class CorpusShards:
    """Stretch k is a function of the corpus, the seed and k alone: on a CPU and a GPU the same, whoever asks."""

    def __init__(self, corpus: Corpus, counts: WordCounts, config: SamplingConfig, seed: int, device: torch.device) -> None:
        """Words that `counts` has none of are passed over, as if the text were without them."""
        self.corpus, self.config, self.seed, self.device = corpus, config, seed, device
        size = len(corpus.tokens)
        self.shards_per_epoch = max(math.ceil(size / SHARD_WORDS), min(MIN_SHARDS, size // 4096), 1)
        self.keep_probs = keep_probabilities(counts, config.sample)
        self.word_probs = normalize(counts * self.keep_probs)
        self.noise_probs = normalize(counts.astype(np.float64) ** config.ns_exponent)
        self._keep_thresholds = torch.from_numpy((self.keep_probs * 2**31).astype(np.int64)).to(device)
        self._noise_table = build_noise_table(self.noise_probs).to(device) if config.noise_words else None

    def __call__(self, k: int) -> tuple[Chunks, int]:
        """The chunks of a stretch, and how many words of the corpus they were made from."""
        epoch, nth = divmod(k, self.shards_per_epoch)
        first, last = (len(self.corpus.tokens) * i // self.shards_per_epoch for i in (nth, nth + 1))
        ids = torch.from_numpy(self.corpus.tokens[first:last].astype(np.int32)).to(self.device)
        dice = device_random_bits(self.seed, Stream.WORD2VEC_WINDOWS, epoch, first, last - first, self.device)
        stays = (top_bits(dice, 31) < self._keep_thresholds[ids]).nonzero().squeeze(1)
        sides = self._window_extents(self._sentence_ids(first, last).index_select(0, stays), dice.index_select(0, stays))
        return self._build_chunks(ids.index_select(0, stays).long(), sides, k), last - first

    def _sentence_ids(self, first: int, last: int) -> Tensor:
        """(words,): a number for the sentence of each."""
        starts = self.corpus.sentence_offsets
        inside = starts[np.searchsorted(starts, first, "right") : np.searchsorted(starts, last, "left")] - first
        marks = torch.zeros(last - first, dtype=torch.int32, device=self.device)
        return marks.index_fill_(0, torch.from_numpy(np.unique(inside)).to(self.device), 1).cumsum(0)

    def _window_extents(self, sentence_ids: Tensor, draws: Tensor) -> Tensor:
        """(words,): how far each sees, in `Chunks.sides`: a window of 1 up to the whole, within its sentence."""
        window, count = self.config.window, len(sentence_ids)
        places = torch.arange(count, device=self.device)
        begins = F.pad(sentence_ids[1:] != sentence_ids[:-1], (1, 0), value=True)[:count]
        first = torch.where(begins, places, 0).cummax(0).values
        last = torch.where(begins, places, count).roll(-1)
        last[-1:] = count
        last = last.flip(0).cummin(0).values.flip(0) - 1
        reach = (draws & 0xFFFF).mul_(window).bitwise_right_shift_(16).add_(1)
        return torch.minimum(reach, places - first) * (window + 1) + torch.minimum(reach, last - places)

    def _build_chunks(self, ids: Tensor, extents: Tensor, k: int) -> Chunks:
        window, words, noise, *_ = self.config
        if not len(ids):  # not one known word
            return Chunks(*(ids.new_zeros(0, size) for size in (words + 2 * window, words, noise)))
        chunks = -(-len(ids) // words)
        rest = chunks * words - len(ids)
        around = F.pad(ids, (window, window + rest)).unfold(0, words + 2 * window, words)
        drawn_noise = ids.new_zeros(chunks, 0)
        if self._noise_table is not None:
            dice = device_random_bits(self.seed, Stream.WORD2VEC_NEGATIVES, k, 0, chunks * noise, self.device)
            drawn_noise = self._noise_table[top_bits(dice, NOISE_TABLE_BITS)].view(chunks, noise).long()
        return Chunks(around[:chunks], F.pad(extents, (0, rest)).view(chunks, words), drawn_noise)


def keep_probabilities(counts: WordCounts, sample: float) -> NDArray[np.float64]:
    """The chance of each word to stay: sqrt(t / f) + t / f for one of the share f, where that is below 1; t = 0 keeps all."""
    if not sample:
        return (counts > 0).astype(np.float64)
    share = sample / np.maximum(counts / max(1, counts.sum()), 1e-300)
    return np.minimum(1.0, np.sqrt(share) + share) * (counts > 0)


def normalize(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return weights / max(float(weights.sum()), 1e-300)


def build_noise_table(probs: NDArray[np.float64], num_bits: int = NOISE_TABLE_BITS) -> Tensor:
    """(2 ** bits,): every word as often as its share of them."""
    places = (np.arange(1 << num_bits) + 0.5) / (1 << num_bits)
    found = np.searchsorted(probs.cumsum(), places * probs.sum(), "right")
    return torch.from_numpy(np.minimum(found, np.flatnonzero(probs)[-1]).astype(np.int32))
