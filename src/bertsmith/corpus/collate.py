"""Batch k as a pure function of (corpus, seed, k): which samples it holds, and their tokens, hidden and packed."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rng import Stream, random_bits, uniform
from .masking import MaskableWords, MaskingConfig, mask_tokens
from .sampling import SampleIndex
from .sampling.base import concat_ranges
from .store import Corpus

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class NumpyBatch:
    """A packed batch in numpy: sequences one after another, nothing between."""

    input_ids: Ints  # (tokens,): what is shown
    lengths: Ints  # (sequences,)
    token_type_ids: Ints | None  # (tokens,): 0 for A, 1 for B
    output_indices: Ints  # (targets,): token positions asked about
    target_ids: Ints  # (targets,): what stood there
    labels: Ints | None  # (sequences,)
    stream_positions: Ints | None = None  # (sequences, 2): where each ends, and the one it goes on from, as a plan has them


@dataclass(frozen=True)
class Collator:
    """Rows of a plan to a packed, masked batch; small enough to send to a worker, which maps the corpus itself."""

    path: Path
    masking: MaskingConfig
    mlm_probability: float
    seed: int

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus.open(self.path, verify_checksums=False)

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        ids, source, lengths = self._pack(samples)
        words = self._maskable_words(ids, source, lengths, samples, epoch)
        tokenizer = self.corpus.tokenizer
        masked = mask_tokens(ids, words, self.masking.select_units(words), tokenizer.mask_token_id, tokenizer.non_special_ids)
        order = np.argsort(masked.output_indices)
        segments = self._token_type_ids(samples) if samples.has_segments else None
        return NumpyBatch(
            masked.input_ids,
            lengths,
            segments,
            masked.output_indices[order],
            masked.target_ids[order],
            samples.labels,
            samples.stream_positions,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Collator, (self.path, self.masking, self.mlm_probability, self.seed)  # not the map: each process opens its own

    def _pack(self, samples: SampleIndex) -> tuple[Ints, Ints, Ints]:
        """Ids, where in the corpus each stood (-1 for specials), and the length of each sample."""
        tokenizer, sizes, lengths = self.corpus.tokenizer, samples.span_ends - samples.span_starts, samples.lengths
        ids, source = np.full(int(lengths.sum()), tokenizer.sep_token_id), np.full(int(lengths.sum()), -1)
        ids[lengths.cumsum() - lengths] = tokenizer.cls_token_id
        owner = np.repeat(np.arange(len(samples)), np.diff(samples.span_offsets))
        to = concat_ranges((sizes + 1).cumsum() - sizes + owner, sizes)  # behind a [CLS] for each sample, a [SEP] for each span
        source[to] = concat_ranges(samples.span_starts, sizes)
        ids[to] = self.corpus.tokens[source[to]]
        return ids, source, lengths

    def _maskable_words(
        self, input_ids: Ints, corpus_positions: Ints, lengths: Ints, samples: SampleIndex, epoch: int
    ) -> MaskableWords:
        """The words that may be hidden: no special token is one, not even an unknown word."""
        begins = lengths.cumsum() - lengths
        free = np.flatnonzero((corpus_positions >= 0) & ~self.corpus.tokenizer.is_special[input_ids])
        sample = np.repeat(np.arange(len(lengths)), lengths)[free]
        apart = np.diff(free, prepend=-2) > 1  # behind a gap a word begins, whatever its piece
        begun = apart | self.corpus.is_word_start(corpus_positions[free]) if self.masking.by_word else np.ones(len(free), bool)
        if self.masking.singly > 0:
            begun |= (
                uniform(random_bits(self.seed, Stream.MASK_SINGLE_TOKENS, epoch, samples.sample_ids)) < self.masking.singly
            )[sample]
        starts = np.flatnonzero(begun)
        sizes = np.diff(starts, append=len(free))
        quota = self.mlm_probability * np.bincount(sample, minlength=len(lengths)).astype(np.float64)
        return MaskableWords(free[starts], sizes, sample[starts], begins, samples.sample_ids, quota, self.seed, epoch)

    def _token_type_ids(self, samples: SampleIndex) -> Ints:
        sizes = samples.span_ends - samples.span_starts + 1
        sizes[samples.span_offsets[:-1]] += 1  # A's part begins with [CLS]
        second = np.arange(len(sizes)) - np.repeat(samples.span_offsets[:-1], np.diff(samples.span_offsets)) > 0
        return np.repeat(second.astype(np.int64), sizes)


@dataclass(frozen=True)
class ClmCollator(Collator):
    """[CLS], then text; a [SEP] behind it only where its document ends, since a model that writes would end there too."""

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        ids, _, lengths = self._pack(samples)
        lasts = lengths.cumsum() - 1
        kept = np.ones(len(ids), bool)
        kept[lasts[~self._ends_document(samples)]] = False
        sample = np.repeat(np.arange(len(lengths)), lengths)[kept]
        tokens = ids[kept]
        where = np.flatnonzero(sample[:-1] == sample[1:])  # the next is of the same sequence
        return NumpyBatch(tokens, np.bincount(sample, minlength=len(lengths)), None, where, tokens[where + 1], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return ClmCollator, (self.path, self.masking, self.mlm_probability, self.seed)

    def _ends_document(self, samples: SampleIndex) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """(samples,): the last span of each ends with its document."""
        borders, ends = self.corpus.document_token_offsets, samples.span_ends[samples.span_offsets[1:] - 1]
        found: Ints = borders[np.searchsorted(borders, ends)]
        return found == ends


@dataclass(frozen=True)
class StreamCollator(Collator):
    """Text, with a [CLS] before it only where its document begins; where it ends, the last token is asked for [SEP]."""

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        corpus, tokenizer, sizes = self.corpus, self.corpus.tokenizer, samples.span_ends - samples.span_starts
        opens, ends = self._is_document_boundary(samples.span_starts), self._is_document_boundary(samples.span_ends)
        lengths = sizes + opens
        ids = np.full(int(lengths.sum()), tokenizer.cls_token_id)
        ids[concat_ranges(lengths.cumsum() - sizes, sizes)] = corpus.tokens[concat_ranges(samples.span_starts, sizes)]
        words = np.append(ids[1:], 0)
        behind = corpus.tokens[np.minimum(samples.span_ends, len(corpus.tokens) - 1)]
        words[lengths.cumsum() - 1] = np.where(ends, tokenizer.sep_token_id, behind)
        return NumpyBatch(ids, lengths, None, np.arange(len(ids)), words, None, samples.stream_positions)

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamCollator, (self.path, self.masking, self.mlm_probability, self.seed)

    def _is_document_boundary(self, positions: "np.ndarray[Any, np.dtype[np.int64]]") -> "np.ndarray[Any, np.dtype[np.bool_]]":
        borders = self.corpus.document_token_offsets
        return np.asarray(borders[np.searchsorted(borders, positions)] == positions)


@dataclass(frozen=True)
class BilmCollator(Collator):
    """[CLS] text [SEP]; `where` are the words of the text, so that each has a token before it and one behind."""

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        ids, source, lengths = self._pack(samples)
        where = np.flatnonzero(source >= 0)
        return NumpyBatch(ids, lengths, None, where, ids[where], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return BilmCollator, (self.path, self.masking, self.mlm_probability, self.seed)
