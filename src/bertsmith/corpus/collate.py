"""Collators: turn selected samples into packed numpy batches with inputs and targets.

A `Collator` is made of two small values, which go to worker processes with it:
- a packing: which special tokens stand around the text of a sample (`ClsSepPacking`, `DocumentPacking`, `StreamPacking`)
- targets: which tokens are predicted, and how the input hides them (`MlmTargets`, `ClmTargets`, `BilmTargets`)
"""

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..rng import Stream, random_bits, uniform
from .masking import MaskableWords, MaskingConfig, TokenTargets, mask_tokens
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


class PackedSequences(NamedTuple):
    """The token sequences of samples, one after the other, before any token is masked."""

    input_ids: Ints  # (tokens,)
    corpus_positions: Ints  # (tokens,): position of each token in the corpus, -1 for [CLS] and [SEP]
    lengths: Ints  # (sequences,)
    token_type_ids: Ints | None = None  # (tokens,): 0 for A, 1 for B; None without segments
    next_ids: Ints | None = None  # (sequences,): the token after each sequence; None: sequences end with their last token


class Packing(Protocol):
    """Turns samples into token sequences."""

    def pack(self, corpus: Corpus, samples: SampleIndex) -> PackedSequences: ...


class Targets(Protocol):
    """Selects the tokens of packed sequences that are predicted."""

    @property
    def target_fraction(self) -> float:
        """Expected share of the text's tokens that are predicted."""
        ...

    @property
    def allows_memory(self) -> bool:
        """Whether the model may continue from its state at the end of the text before, in batches of streams."""
        ...

    def select(self, corpus: Corpus, packed: PackedSequences, sample_ids: Ints, seed: int, epoch: int) -> TokenTargets:
        """Input ids and targets in ascending order; random numbers depend on (seed, epoch, sample id, position) only."""
        ...


@dataclass(frozen=True)
class Collator:
    """Samples to a packed batch. Cheap to pickle for workers, which open the corpus themselves."""

    path: Path
    packing: Packing
    targets: Targets
    seed: int

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus.open(self.path, verify_checksums=False)

    def __call__(self, samples: SampleIndex, epoch: int) -> NumpyBatch:
        packed = self.packing.pack(self.corpus, samples)
        input_ids, output_indices, target_ids = self.targets.select(self.corpus, packed, samples.sample_ids, self.seed, epoch)
        return NumpyBatch(
            input_ids,
            packed.lengths,
            packed.token_type_ids,
            output_indices,
            target_ids,
            samples.labels,
            samples.stream_positions if self.targets.allows_memory else None,
        )

    def __getstate__(self) -> dict[str, Any]:
        """The fields without the cached corpus: each process maps its own."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


# packings


@dataclass(frozen=True)
class ClsSepPacking:
    """[CLS] span [SEP] span [SEP] ... (BERT); the second span of a sentence pair is segment B."""

    def pack(self, corpus: Corpus, samples: SampleIndex) -> PackedSequences:
        tokenizer, sizes, lengths = corpus.tokenizer, samples.span_ends - samples.span_starts, samples.lengths
        input_ids, corpus_positions = np.full(int(lengths.sum()), tokenizer.sep_token_id), np.full(int(lengths.sum()), -1)
        input_ids[lengths.cumsum() - lengths] = tokenizer.cls_token_id
        sample_index = np.repeat(np.arange(len(samples)), np.diff(samples.span_offsets))
        # After one [CLS] per sample and one [SEP] per span.
        targets = concat_ranges((sizes + 1).cumsum() - sizes + sample_index, sizes)
        corpus_positions[targets] = concat_ranges(samples.span_starts, sizes)
        input_ids[targets] = corpus.tokens[corpus_positions[targets]]
        token_type_ids = _token_type_ids(samples) if samples.has_segments else None
        return PackedSequences(input_ids, corpus_positions, lengths, token_type_ids)


@dataclass(frozen=True)
class DocumentPacking:
    """[CLS] text; followed by [SEP] only at the end of a document, so that generation does not stop elsewhere (GPT)."""

    def pack(self, corpus: Corpus, samples: SampleIndex) -> PackedSequences:
        packed = ClsSepPacking().pack(corpus, samples)
        ends_document = _is_document_boundary(corpus, samples.span_ends[samples.span_offsets[1:] - 1])
        keep = np.ones(len(packed.input_ids), bool)
        keep[packed.lengths.cumsum()[~ends_document] - 1] = False
        return PackedSequences(packed.input_ids[keep], packed.corpus_positions[keep], packed.lengths - ~ends_document)


@dataclass(frozen=True)
class StreamPacking:
    """Text without [SEP]; [CLS] only at the start of a document (Transformer-XL). The token after each sequence is known:
    the next one of the document, or [SEP] at its end."""

    def pack(self, corpus: Corpus, samples: SampleIndex) -> PackedSequences:
        sizes, tokenizer = samples.span_ends - samples.span_starts, corpus.tokenizer
        lengths = sizes + _is_document_boundary(corpus, samples.span_starts)
        input_ids, corpus_positions = np.full(int(lengths.sum()), tokenizer.cls_token_id), np.full(int(lengths.sum()), -1)
        text = concat_ranges(lengths.cumsum() - sizes, sizes)
        corpus_positions[text] = concat_ranges(samples.span_starts, sizes)
        input_ids[text] = corpus.tokens[corpus_positions[text]]
        next_token = corpus.tokens[np.minimum(samples.span_ends, len(corpus.tokens) - 1)]
        next_ids = np.where(_is_document_boundary(corpus, samples.span_ends), tokenizer.sep_token_id, next_token)
        return PackedSequences(input_ids, corpus_positions, lengths, next_ids=next_ids)


def _token_type_ids(samples: SampleIndex) -> Ints:
    sizes = samples.span_ends - samples.span_starts + 1
    sizes[samples.span_offsets[:-1]] += 1  # [CLS] belongs to segment A
    is_second = np.arange(len(sizes)) - np.repeat(samples.span_offsets[:-1], np.diff(samples.span_offsets)) > 0
    return np.repeat(is_second.astype(np.int64), sizes)


def _is_document_boundary(corpus: Corpus, positions: Ints) -> NDArray[np.bool_]:
    """(positions,) bool: a document starts or ends at this position of the corpus."""
    boundaries = corpus.document_token_offsets
    return np.asarray(boundaries[np.searchsorted(boundaries, positions)] == positions)


# targets


@dataclass(frozen=True)
class MlmTargets:
    """Masked language modelling: a share of the tokens, corrupted in the input."""

    masking: MaskingConfig
    mlm_probability: float

    allows_memory = True

    @property
    def target_fraction(self) -> float:
        return self.mlm_probability

    def select(self, corpus: Corpus, packed: PackedSequences, sample_ids: Ints, seed: int, epoch: int) -> TokenTargets:
        words, tokenizer = self.maskable_words(corpus, packed, sample_ids, seed, epoch), corpus.tokenizer
        masked = mask_tokens(
            packed.input_ids, words, self.masking.select_units(words), tokenizer.mask_token_id, tokenizer.non_special_ids
        )
        order = np.argsort(masked.output_indices)
        return TokenTargets(masked.input_ids, masked.output_indices[order], masked.target_ids[order])

    def maskable_words(self, corpus: Corpus, packed: PackedSequences, sample_ids: Ints, seed: int, epoch: int) -> MaskableWords:
        """Words that may be masked; special tokens, [UNK] included, are excluded."""
        lengths, masking = packed.lengths, self.masking
        maskable = np.flatnonzero((packed.corpus_positions >= 0) & ~corpus.tokenizer.is_special[packed.input_ids])
        sample_index = np.repeat(np.arange(len(lengths)), lengths)[maskable]
        after_gap = np.diff(maskable, prepend=-2) > 1  # after a gap a word starts, whatever its first token
        is_start = (
            after_gap | corpus.is_word_start(packed.corpus_positions[maskable])
            if masking.by_word
            else np.ones(len(maskable), bool)
        )
        if masking.token_masking_share > 0:
            uniforms = uniform(random_bits(seed, Stream.MASK_SINGLE_TOKENS, epoch, sample_ids))
            is_start |= (uniforms < masking.token_masking_share)[sample_index]
        starts = np.flatnonzero(is_start)
        sizes = np.diff(starts, append=len(maskable))
        token_budget = self.mlm_probability * np.bincount(sample_index, minlength=len(lengths)).astype(np.float64)
        sample_starts = lengths.cumsum() - lengths
        return MaskableWords(
            maskable[starts], sizes, sample_index[starts], sample_starts, sample_ids, token_budget, seed, epoch
        )


@dataclass(frozen=True)
class ClmTargets:
    """Causal language modelling: at every token the one after it, where there is one in the same text."""

    target_fraction = 1.0
    allows_memory = True

    def select(self, corpus: Corpus, packed: PackedSequences, sample_ids: Ints, seed: int, epoch: int) -> TokenTargets:
        target_ids, last_tokens = np.append(packed.input_ids[1:], 0), packed.lengths.cumsum() - 1
        if packed.next_ids is not None:
            target_ids[last_tokens] = packed.next_ids
            return TokenTargets(packed.input_ids, np.arange(len(target_ids)), target_ids)
        output_indices = np.delete(np.arange(len(target_ids)), last_tokens)
        return TokenTargets(packed.input_ids, output_indices, target_ids[output_indices])


@dataclass(frozen=True)
class BilmTargets:
    """Bidirectional language modelling (ELMo): every token of the text, each from its left and from its right neighbour."""

    target_fraction = 1.0
    allows_memory = False  # the backward direction comes from the text after, not before

    def select(self, corpus: Corpus, packed: PackedSequences, sample_ids: Ints, seed: int, epoch: int) -> TokenTargets:
        output_indices = np.flatnonzero(packed.corpus_positions >= 0)
        return TokenTargets(packed.input_ids, output_indices, packed.input_ids[output_indices])
