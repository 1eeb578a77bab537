"""Sampling of word2vec training data on the device: subsampling, dynamic windows and noise words (Mikolov et al. 2013).

- device_random_bits: `rng.random_bits` as a tensor, with the same bits on every device
- Chunks, WindowMasks: fixed-size chunks of text, and which context words each center word has
- CorpusShards: the chunks of each part of the corpus
"""

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..corpus.store import Corpus
from ..rng import Stream, random_bits

# torch has signed 64-bit integers: products and xor are the same, but a right shift must not extend the sign.
_SPLITMIX_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def device_random_bits(seed: int, purpose: str, epoch: int, first: int, count: int, device: torch.device) -> Tensor:
    """`random_bits(seed, purpose, epoch, range(first, first + count))` as int64."""
    state = int(random_bits(seed, purpose, epoch).astype(np.int64))
    counters = torch.arange(first, first + count, device=device)
    return _mix64(_mix64(counters.mul_(_SPLITMIX_INCREMENT).add_(_SPLITMIX_INCREMENT)).bitwise_xor_(state))


def top_bits(values: Tensor, num_bits: int) -> Tensor:
    """The top `num_bits` bits of each value as a nonnegative integer."""
    return (values >> (64 - num_bits)).bitwise_and_((1 << num_bits) - 1)


def _mix64(x: Tensor) -> Tensor:
    """The finalizer of splitmix64, in place."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        x.bitwise_xor_(top_bits(x, 64 - shift))
        if factor != 1:
            x.mul_(factor)
    return x


class Chunks(NamedTuple):
    """Chunks of text with their context windows and noise words.

    An extent encodes how many context words a center word has: left * (window + 1) + right, 0 for padding.
    """

    context_ids: Tensor  # (chunks, window + words + window)
    extents: Tensor  # (chunks, words)
    noise_ids: Tensor  # (chunks, noise words), shared by all words of a chunk

    @property
    def center_ids(self) -> Tensor:
        """(chunks, words)."""
        window = (self.context_ids.shape[1] - self.extents.shape[1]) // 2
        return self.context_ids[:, window : window + self.extents.shape[1]]

    def interleave(self, num_groups: int) -> list["Chunks"]:
        """Deals chunks round-robin to groups, so that neighbouring text with repeated words is not in one step."""
        order = torch.argsort(torch.arange(len(self.extents), device=self.extents.device) % num_groups, stable=True)
        return [Chunks(*tensors) for tensors in zip(*(part[order].tensor_split(num_groups) for part in self), strict=True)]


class WindowMasks:
    """Lookup tables of context masks, with a row for each extent (words to the left, words to the right)."""

    def __init__(self, window: int, chunk_words: int, device: torch.device | str = "cpu") -> None:
        offsets, extent = torch.arange(-window, window + 1), torch.arange(window + 1)
        is_context = (offsets >= -extent[:, None, None]) & (offsets <= extent[None, :, None]) & (offsets != 0)
        self.offset_masks = is_context.view(-1, 2 * window + 1).float().to(device)  # (extents, 2 * window + 1)
        self.context_sizes = self.offset_masks.sum(1)
        band = torch.zeros(len(self.offset_masks), chunk_words, chunk_words + 2 * window)
        for position in range(chunk_words):
            band[:, position, position : position + 2 * window + 1] = self.offset_masks.cpu()
        self.band_masks = band.view(-1, chunk_words + 2 * window).to(device)
        self.mean_band = self.band_masks / self.band_masks.sum(1, keepdim=True).clamp(min=1)
        self.positions = torch.arange(chunk_words, device=device)

    def context_mask(self, extents: Tensor) -> Tensor:
        """(chunks, words, context): 1.0 where a word of `context_ids` is in the window of the center word."""
        return self._lookup(self.band_masks, extents)

    def mean_weights(self, extents: Tensor) -> Tensor:
        """The same divided by the number of context words: weights of their mean."""
        return self._lookup(self.mean_band, extents)

    def context_counts(self, extents: Tensor) -> Tensor:
        """(chunks, words, 1): number of context words."""
        return self.context_sizes.take(extents)[..., None]

    def _lookup(self, table: Tensor, extents: Tensor) -> Tensor:
        row = extents * len(self.positions) + self.positions
        return table.index_select(0, row.flatten()).view(*extents.shape, -1)


SHARD_WORDS = 1 << 20  # at most
MIN_SHARDS = 8  # per epoch, at least, unless the corpus is tiny
NOISE_TABLE_BITS = 22  # noise words are drawn from a table of 2 ** 22 entries
WordCounts = NDArray[np.int64]


class SamplingConfig(NamedTuple):
    """Sampling options, common to skip-gram and CBOW."""

    window: int
    chunk_words: int  # center words of a chunk
    noise_words: int  # noise words of a chunk
    sample: float  # subsampling threshold t
    ns_exponent: float = 0.75  # exponent of the counts in the noise distribution


class CorpusShards:
    """Training data by shard: shard k is a pure function of the corpus, the seed and k, the same on a CPU and a GPU."""

    def __init__(self, corpus: Corpus, counts: WordCounts, config: SamplingConfig, seed: int, device: torch.device) -> None:
        """Words with count 0 are dropped from the text."""
        self.corpus, self.config, self.seed, self.device = corpus, config, seed, device
        num_tokens = len(corpus.tokens)
        self.shards_per_epoch = max(math.ceil(num_tokens / SHARD_WORDS), min(MIN_SHARDS, num_tokens // 4096), 1)
        self.keep_probs = keep_probabilities(counts, config.sample)
        self.word_probs = normalize(counts * self.keep_probs)
        self.noise_probs = normalize(counts.astype(np.float64) ** config.ns_exponent)
        self._keep_thresholds = torch.from_numpy((self.keep_probs * 2**31).astype(np.int64)).to(device)
        self._noise_table = build_noise_table(self.noise_probs).to(device) if config.noise_words else None

    def __call__(self, k: int) -> tuple[Chunks, int]:
        """Chunks of shard k, and the number of corpus words they come from."""
        epoch, shard = divmod(k, self.shards_per_epoch)
        first, last = (len(self.corpus.tokens) * i // self.shards_per_epoch for i in (shard, shard + 1))
        ids = torch.from_numpy(self.corpus.tokens[first:last].astype(np.int32)).to(self.device)
        bits = device_random_bits(self.seed, Stream.WORD2VEC_WINDOWS, epoch, first, last - first, self.device)
        kept_positions = (top_bits(bits, 31) < self._keep_thresholds[ids]).nonzero().squeeze(1)
        extents = self._window_extents(
            self._sentence_ids(first, last).index_select(0, kept_positions), bits.index_select(0, kept_positions)
        )
        return self._build_chunks(ids.index_select(0, kept_positions).long(), extents, k), last - first

    def _sentence_ids(self, first: int, last: int) -> Tensor:
        """(words,): index of the sentence of each word, from an arbitrary start."""
        sentence_offsets = self.corpus.sentence_offsets
        sentence_starts = (
            sentence_offsets[
                np.searchsorted(sentence_offsets, first, "right") : np.searchsorted(sentence_offsets, last, "left")
            ]
            - first
        )
        is_start = torch.zeros(last - first, dtype=torch.int32, device=self.device)
        return is_start.index_fill_(0, torch.from_numpy(np.unique(sentence_starts)).to(self.device), 1).cumsum(0)

    def _window_extents(self, sentence_ids: Tensor, draws: Tensor) -> Tensor:
        """(words,): extents (see Chunks): a window drawn uniformly from 1 .. window, cut at the ends of the sentence."""
        window, count = self.config.window, len(sentence_ids)
        positions = torch.arange(count, device=self.device)
        is_sentence_start = F.pad(sentence_ids[1:] != sentence_ids[:-1], (1, 0), value=True)[:count]
        first = torch.where(is_sentence_start, positions, 0).cummax(0).values
        last = torch.where(is_sentence_start, positions, count).roll(-1)
        last[-1:] = count
        last = last.flip(0).cummin(0).values.flip(0) - 1
        window_sizes = (draws & 0xFFFF).mul_(window).bitwise_right_shift_(16).add_(1)
        return torch.minimum(window_sizes, positions - first) * (window + 1) + torch.minimum(window_sizes, last - positions)

    def _build_chunks(self, ids: Tensor, extents: Tensor, k: int) -> Chunks:
        window, words, noise, *_ = self.config
        if not len(ids):  # no known word
            return Chunks(*(ids.new_zeros(0, size) for size in (words + 2 * window, words, noise)))
        num_chunks = -(-len(ids) // words)
        padding = num_chunks * words - len(ids)
        context_ids = F.pad(ids, (window, window + padding)).unfold(0, words + 2 * window, words)
        noise_ids = ids.new_zeros(num_chunks, 0)
        if self._noise_table is not None:
            bits = device_random_bits(self.seed, Stream.WORD2VEC_NEGATIVES, k, 0, num_chunks * noise, self.device)
            noise_ids = self._noise_table[top_bits(bits, NOISE_TABLE_BITS)].view(num_chunks, noise).long()
        return Chunks(context_ids[:num_chunks], F.pad(extents, (0, padding)).view(num_chunks, words), noise_ids)


def keep_probabilities(counts: WordCounts, sample: float) -> NDArray[np.float64]:
    """Subsampling: min(1, sqrt(t / f) + t / f) for a word of relative frequency f, with t = sample; t = 0 keeps all words."""
    if not sample:
        return (counts > 0).astype(np.float64)
    ratio = sample / np.maximum(counts / max(1, counts.sum()), 1e-300)
    return np.minimum(1.0, np.sqrt(ratio) + ratio) * (counts > 0)


def normalize(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights that sum to 1."""
    return weights / max(float(weights.sum()), 1e-300)


def build_noise_table(probs: NDArray[np.float64], num_bits: int = NOISE_TABLE_BITS) -> Tensor:
    """(2 ** num_bits,) int32: each word id as often as its probability."""
    quantiles = (np.arange(1 << num_bits) + 0.5) / (1 << num_bits)
    word_ids = np.searchsorted(probs.cumsum(), quantiles * probs.sum(), "right")
    return torch.from_numpy(np.minimum(word_ids, np.flatnonzero(probs)[-1]).astype(np.int32))
