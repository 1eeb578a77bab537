"""Collators: turn selected samples into packed numpy batches with inputs, masks and targets.

- `Collator`: masked language modelling, with optional sentence-pair labels
- `ClmCollator`: causal language modelling, one target per token of a sample
- `StreamCollator`: causal language modelling over consecutive windows (Transformer-XL)
- `BilmCollator`: bidirectional language modelling (ELMo)
"""

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
    """A packed batch in numpy: sequences concatenated without padding."""

    input_ids: Ints  # (tokens,): after masking
    lengths: Ints  # (sequences,)
    token_type_ids: Ints | None  # (tokens,): 0 for A, 1 for B
    output_indices: Ints  # (targets,): token positions to predict
    target_ids: Ints  # (targets,): the original tokens
    labels: Ints | None  # (sequences,)
    stream_positions: Ints | None = None  # (sequences, 2): as in SampleIndex


@dataclass(frozen=True)
class Collator:
    """Samples to a packed, masked batch. Cheap to pickle for workers, which open the corpus themselves."""

    path: Path
    masking: MaskingConfig
    mlm_probability: float
    seed: int

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus.open(self.path, verify_checksums=False)

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        input_ids, corpus_positions, lengths = self._pack(samples)
        words = self._maskable_words(input_ids, corpus_positions, lengths, samples, epoch)
        tokenizer = self.corpus.tokenizer
        masked = mask_tokens(
            input_ids, words, self.masking.select_units(words), tokenizer.mask_token_id, tokenizer.non_special_ids
        )
        order = np.argsort(masked.output_indices)
        token_type_ids = self._token_type_ids(samples) if samples.has_segments else None
        return NumpyBatch(
            masked.input_ids,
            lengths,
            token_type_ids,
            masked.output_indices[order],
            masked.target_ids[order],
            samples.labels,
            samples.stream_positions,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached corpus: each process maps its own.
        return Collator, (
            self.path,
            self.masking,
            self.mlm_probability,
            self.seed,
        )

    def _pack(self, samples: SampleIndex) -> tuple[Ints, Ints, Ints]:
        """([CLS] span [SEP] span [SEP] ... of all samples, corpus position of each token or -1, length of each sample)."""
        tokenizer, sizes, lengths = self.corpus.tokenizer, samples.span_ends - samples.span_starts, samples.lengths
        input_ids, corpus_positions = np.full(int(lengths.sum()), tokenizer.sep_token_id), np.full(int(lengths.sum()), -1)
        input_ids[lengths.cumsum() - lengths] = tokenizer.cls_token_id
        sample_index = np.repeat(np.arange(len(samples)), np.diff(samples.span_offsets))
        # After one [CLS] per sample and one [SEP] per span.
        targets = concat_ranges((sizes + 1).cumsum() - sizes + sample_index, sizes)
        corpus_positions[targets] = concat_ranges(samples.span_starts, sizes)
        input_ids[targets] = self.corpus.tokens[corpus_positions[targets]]
        return input_ids, corpus_positions, lengths

    def _maskable_words(
        self, input_ids: Ints, corpus_positions: Ints, lengths: Ints, samples: SampleIndex, epoch: int
    ) -> MaskableWords:
        """Words that may be masked; special tokens, [UNK] included, are excluded."""
        sample_starts = lengths.cumsum() - lengths
        maskable = np.flatnonzero((corpus_positions >= 0) & ~self.corpus.tokenizer.is_special[input_ids])
        sample_index = np.repeat(np.arange(len(lengths)), lengths)[maskable]
        after_gap = np.diff(maskable, prepend=-2) > 1  # after a gap a word starts, whatever its first token
        is_start = (
            after_gap | self.corpus.is_word_start(corpus_positions[maskable])
            if self.masking.by_word
            else np.ones(len(maskable), bool)
        )
        if self.masking.token_masking_share > 0:
            is_start |= (
                uniform(random_bits(self.seed, Stream.MASK_SINGLE_TOKENS, epoch, samples.sample_ids))
                < self.masking.token_masking_share
            )[sample_index]
        starts = np.flatnonzero(is_start)
        sizes = np.diff(starts, append=len(maskable))
        token_budget = self.mlm_probability * np.bincount(sample_index, minlength=len(lengths)).astype(np.float64)
        return MaskableWords(
            maskable[starts], sizes, sample_index[starts], sample_starts, samples.sample_ids, token_budget, self.seed, epoch
        )

    def _token_type_ids(self, samples: SampleIndex) -> Ints:
        sizes = samples.span_ends - samples.span_starts + 1
        sizes[samples.span_offsets[:-1]] += 1  # [CLS] belongs to segment A
        is_second = np.arange(len(sizes)) - np.repeat(samples.span_offsets[:-1], np.diff(samples.span_offsets)) > 0
        return np.repeat(is_second.astype(np.int64), sizes)


@dataclass(frozen=True)
class ClmCollator(Collator):
    """[CLS] text; followed by [SEP] only at the end of a document, so that generation does not stop elsewhere."""

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        packed_ids, _, lengths = self._pack(samples)
        last_tokens = lengths.cumsum() - 1
        keep = np.ones(len(packed_ids), bool)
        keep[last_tokens[~self._ends_document(samples)]] = False
        sample_index = np.repeat(np.arange(len(lengths)), lengths)[keep]
        input_ids = packed_ids[keep]
        output_indices = np.flatnonzero(sample_index[:-1] == sample_index[1:])  # the next token belongs to the same sequence
        return NumpyBatch(
            input_ids,
            np.bincount(sample_index, minlength=len(lengths)),
            None,
            output_indices,
            input_ids[output_indices + 1],
            None,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return ClmCollator, (self.path, self.masking, self.mlm_probability, self.seed)

    def _ends_document(self, samples: SampleIndex) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """(samples,) bool: the last span of the sample ends at the end of its document."""
        boundaries, ends = self.corpus.document_token_offsets, samples.span_ends[samples.span_offsets[1:] - 1]
        next_boundary: Ints = boundaries[np.searchsorted(boundaries, ends)]
        return next_boundary == ends


@dataclass(frozen=True)
class StreamCollator(Collator):
    """Text without [SEP]; [CLS] only at the start of a document. Every token has a target: the next one, [SEP] at the end
    of a document."""

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        corpus, tokenizer, sizes = self.corpus, self.corpus.tokenizer, samples.span_ends - samples.span_starts
        starts_document, ends_document = (
            self._is_document_boundary(samples.span_starts),
            self._is_document_boundary(samples.span_ends),
        )
        lengths = sizes + starts_document
        input_ids = np.full(int(lengths.sum()), tokenizer.cls_token_id)
        input_ids[concat_ranges(lengths.cumsum() - sizes, sizes)] = corpus.tokens[concat_ranges(samples.span_starts, sizes)]
        target_ids = np.append(input_ids[1:], 0)
        next_token = corpus.tokens[np.minimum(samples.span_ends, len(corpus.tokens) - 1)]
        target_ids[lengths.cumsum() - 1] = np.where(ends_document, tokenizer.sep_token_id, next_token)
        return NumpyBatch(input_ids, lengths, None, np.arange(len(input_ids)), target_ids, None, samples.stream_positions)

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamCollator, (self.path, self.masking, self.mlm_probability, self.seed)

    def _is_document_boundary(self, positions: "np.ndarray[Any, np.dtype[np.int64]]") -> "np.ndarray[Any, np.dtype[np.bool_]]":
        boundaries = self.corpus.document_token_offsets
        return np.asarray(boundaries[np.searchsorted(boundaries, positions)] == positions)


@dataclass(frozen=True)
class BilmCollator(Collator):
    """[CLS] text [SEP]; the output indices are the tokens of the text, each with a left and a right neighbour."""

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        input_ids, corpus_positions, lengths = self._pack(samples)
        output_indices = np.flatnonzero(corpus_positions >= 0)
        return NumpyBatch(input_ids, lengths, None, output_indices, input_ids[output_indices], None)

    def __reduce__(self) -> tuple[Any, ...]:
        return BilmCollator, (self.path, self.masking, self.mlm_probability, self.seed)
