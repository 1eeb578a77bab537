"""Masking: the requested fractions, whole units, no special tokens, unchanged lengths."""

from pathlib import Path

import numpy as np
import pytest

from bertsmith.corpus.collate import ClsSepPacking, Collator, MlmTargets
from bertsmith.corpus.loader import BatchLoader
from bertsmith.corpus.masking import MaskableWords, NgramMasking, RunMasking, SpanMasking, TokenMasking, WholeWordMasking
from bertsmith.corpus.sampling import FullSentences, NextSentence, Windows
from bertsmith.corpus.store import Corpus
from bertsmith.tokenization.tokenizer import Tokenizer

MASKINGS = [TokenMasking(), WholeWordMasking(), SpanMasking(), NgramMasking()]
every_masking = pytest.mark.parametrize("masking", MASKINGS, ids=lambda m: type(m).__name__)
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *(f"w{i}" for i in range(500))]
VOCABULARY += [*(f"##p{i}" for i in range(300)), *(chr(0x4E00 + i) for i in range(400))]


def make_english_corpus(documents=3000, seed=0):
    """A corpus of words of one to four tokens."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 12, documents)
    lengths = rng.integers(4, 40, sizes.sum())
    total = lengths.sum()
    token_ids = np.where(rng.random(total) < 0.3, rng.integers(506, 806, total), rng.integers(6, 506, total))
    token_ids[rng.random(total) < 0.01] = 1
    return make_corpus(token_ids, lengths, sizes)


def make_chinese_corpus(documents=3000, seed=0):
    """A corpus of Chinese characters with word-start flags."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 12, documents)
    lengths = rng.integers(4, 40, sizes.sum())
    total = lengths.sum()
    return make_corpus(rng.integers(806, 1206, total), lengths, sizes, np.packbits(rng.random(total) < 0.6))


def make_corpus(token_ids, lengths, sizes, word_starts=None):
    offsets = np.append(0, lengths.cumsum()), np.append(0, sizes.cumsum())
    corpus = Corpus(Path("made"), token_ids.astype(np.uint16), *offsets, word_starts, {})
    corpus.__dict__["tokenizer"] = Tokenizer.from_vocab(VOCABULARY)
    return corpus


def make_loader(corpus, masking, sampler=None, seed=0, batch_tokens=65_536, mlm_probability=0.15, max_length=128, targets=None):
    """Batches of these `targets`; by default those of MLM, with this masking."""
    collator = Collator(corpus.path, ClsSepPacking(), targets or MlmTargets(masking, mlm_probability), seed)
    collator.__dict__["corpus"] = corpus
    return BatchLoader(
        collator, sampler or NextSentence(), np.arange(len(corpus.document_offsets) - 1), max_length, batch_tokens
    )


def unmasked_ids(loader, k):
    """Token ids of batch k before masking."""
    samples, _ = loader.select_samples(k)
    return loader.collator.packing.pack(loader.collator.corpus, samples).input_ids


def find_maskable_words(loader, samples, epoch):
    corpus, packing, targets = loader.collator.corpus, loader.collator.packing, loader.collator.targets
    return targets.maskable_words(corpus, packing.pack(corpus, samples), samples.sample_ids, loader.collator.seed, epoch)


@every_masking
@pytest.mark.parametrize("language", [make_english_corpus, make_chinese_corpus])
def test_masking_keeps_lengths_and_unselected_tokens(masking, language):
    loader = make_loader(language(300), masking)
    for k in range(3):
        batch, unmasked = loader(k), unmasked_ids(loader, k)
        assert len(batch.input_ids) == len(unmasked) == batch.lengths.sum()
        is_target = np.zeros(len(unmasked), bool)
        is_target[batch.output_indices] = True
        assert np.array_equal(batch.input_ids[~is_target], unmasked[~is_target])
        assert np.array_equal(batch.target_ids, unmasked[batch.output_indices])
        tokenizer = loader.collator.corpus.tokenizer
        assert not tokenizer.is_special[batch.target_ids].any()  # nor [UNK], which has no known answer
        replaced = batch.input_ids[batch.output_indices][batch.input_ids[batch.output_indices] != tokenizer.mask_token_id]
        assert not tokenizer.is_special[replaced].any()


@every_masking
@pytest.mark.parametrize("language", [make_english_corpus, make_chinese_corpus])
def test_masking_selects_15_percent_with_80_10_10_corruption(masking, language):
    loader = make_loader(language(), masking)
    tokenizer = loader.collator.corpus.tokenizer
    k = num_sequences = 0
    token_counts, corruption_counts = [], []
    while num_sequences < 100_000:
        batch, unmasked = loader(k), unmasked_ids(loader, k)
        num_sequences, k = num_sequences + len(batch.lengths), k + 1
        token_counts.append((len(batch.output_indices), (~tokenizer.is_special[unmasked]).sum()))
        corrupted = batch.input_ids[batch.output_indices]
        kinds = (
            corrupted == tokenizer.mask_token_id,
            (corrupted != tokenizer.mask_token_id) & (corrupted != batch.target_ids),
            corrupted == batch.target_ids,
        )
        corruption_counts.append([kind.sum() for kind in kinds])
    num_targets, num_maskable = np.array(token_counts).sum(0)
    # A unit of several tokens is one sample: the standard error is that of the number of units, at least a tenth of the tokens.
    assert num_targets / num_maskable == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / (num_maskable / 10)) ** 0.5)
    fractions = np.array(corruption_counts).sum(0) / num_targets
    unchanged_replacements = 0.1 / len(tokenizer.non_special_ids)  # a random replacement may be the token itself
    assert fractions == pytest.approx(
        [0.8, 0.1 - unchanged_replacements, 0.1 + unchanged_replacements], abs=4 * (0.16 / (num_targets / 10)) ** 0.5
    )


@pytest.mark.parametrize("language", [make_english_corpus, make_chinese_corpus])
@pytest.mark.parametrize("masking", [WholeWordMasking(), SpanMasking(), NgramMasking()], ids=lambda m: type(m).__name__)
def test_masking_corrupts_whole_words_alike(masking, language):
    loader = make_loader(language(300), masking)
    collator, tokenizer = loader.collator, loader.collator.corpus.tokenizer
    for k in range(3):
        batch, (samples, _) = loader(k), loader.select_samples(k)
        token_ids, corpus_positions, *_ = collator.packing.pack(collator.corpus, samples)
        is_target = np.zeros(len(token_ids), bool)
        is_target[batch.output_indices] = True
        is_maskable = (corpus_positions >= 0) & ~tokenizer.is_special[token_ids]
        inner = np.flatnonzero(is_maskable[1:] & is_maskable[:-1]) + 1  # tokens after a maskable token
        inner = inner[~collator.corpus.is_word_start(corpus_positions[inner])]  # in the same word
        assert (is_target[inner] == is_target[inner - 1]).all()
        masked_inner = inner[is_target[inner]]
        assert (
            (batch.input_ids[masked_inner] == tokenizer.mask_token_id)
            == (batch.input_ids[masked_inner - 1] == tokenizer.mask_token_id)
        ).all()


def test_whole_word_masking_masks_single_tokens_in_a_fraction_of_samples():
    loader = make_loader(make_chinese_corpus(2000), WholeWordMasking(token_masking_share=0.3))
    whole_word_loader, selections = (
        make_loader(make_chinese_corpus(2000), WholeWordMasking()),
        [loader.select_samples(k) for k in range(4)],
    )
    token_masked, unchanged, masked_fractions = [], [], []
    for k, (samples, epoch) in enumerate(selections):
        words, lengths = find_maskable_words(loader, samples, epoch), samples.lengths
        max_word_size = np.zeros(len(lengths), np.int64)
        np.maximum.at(max_word_size, words.sample_index, words.sizes)
        is_token_masked = max_word_size == 1
        token_masked.append(is_token_masked)
        sample_index = np.repeat(np.arange(len(lengths)), lengths)
        num_targets, num_whole_word_targets = (
            np.bincount(sample_index[each_loader(k).output_indices], minlength=len(lengths))
            for each_loader in (loader, whole_word_loader)
        )
        unchanged.append((num_targets == num_whole_word_targets)[~is_token_masked])
        masked_fractions.append(num_targets.sum() / words.sizes.sum())
    assert np.concatenate(token_masked).mean() == pytest.approx(0.3, abs=0.05)
    assert np.concatenate(unchanged).all()  # the other samples are unchanged
    assert np.mean(masked_fractions) == pytest.approx(0.15, abs=0.01)


def test_span_and_ngram_masking_have_the_published_lengths():
    probs = SpanMasking().length_probs()
    assert probs.sum() == pytest.approx(1) and len(probs) == 10
    assert (probs * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.01)  # SpanBERT, section 3.1
    assert NgramMasking().length_probs() == pytest.approx(np.array([6, 3, 2]) / 11)  # ALBERT, section 4.1


def select_units(loader, k):
    """The maskable words of batch k, and the unit of each."""
    samples, epoch = loader.select_samples(k)
    words = find_maskable_words(loader, samples, epoch)
    return words, loader.collator.targets.masking.select_units(words)


@pytest.mark.parametrize("language", [make_english_corpus, make_chinese_corpus])
@pytest.mark.parametrize("max_length", [64, 128, 512])
@pytest.mark.parametrize("masking", [SpanMasking(), NgramMasking()], ids=lambda m: type(m).__name__)
def test_masked_runs_follow_length_probs(masking, max_length, language):
    loader = make_loader(language(), masking, FullSentences(), max_length=max_length)
    run_lengths, num_masked, num_maskable = [], 0, 0
    for k in range(6):
        words, units = select_units(loader, k)
        is_masked = units >= 0
        run_lengths.append(np.unique(words.sample_index[is_masked] * 1000 + units[is_masked], return_counts=True)[1])
        num_masked, num_maskable = num_masked + words.sizes[is_masked].sum(), num_maskable + words.sizes.sum()
    run_lengths, probs = np.concatenate(run_lengths), masking.length_probs()
    # Some 8,000 runs with a standard deviation of 0.7 of the mean length (spans): three standard errors are 2.4 %.
    assert run_lengths.mean() == pytest.approx((probs * np.arange(1, len(probs) + 1)).sum(), rel=0.024)
    fractions = np.bincount(run_lengths, minlength=len(probs) + 1)[1:] / len(run_lengths)
    assert fractions == pytest.approx(probs, abs=4 * (0.25 / len(run_lengths)) ** 0.5)
    assert num_masked / num_maskable == pytest.approx(
        0.15, rel=0.03
    )  # 6,000 samples that miss their budget by half: four standard errors


@pytest.mark.parametrize("mlm_probability", [0.15, 0.9])
@pytest.mark.parametrize("masking", [SpanMasking(), NgramMasking(max_ngram=40)], ids=lambda m: type(m).__name__)
def test_masked_unit_is_one_run_within_its_sample(masking, mlm_probability):
    words, units = select_units(make_loader(make_english_corpus(400), masking, mlm_probability=mlm_probability), 0)
    assert len(units) == len(words.starts)
    for sample in range(len(words.sample_ids)):
        sample_units = units[words.sample_index == sample]
        for unit in np.unique(sample_units[sample_units >= 0]):
            assert np.ptp(np.flatnonzero(sample_units == unit)) + 1 == (sample_units == unit).sum()
    assert words.sizes[units >= 0].sum() / words.sizes.sum() == pytest.approx(mlm_probability, rel=0.05)


def test_masked_runs_are_placed_uniformly_and_may_be_adjacent():
    samples, count = 30_000, 6
    sample_index = np.repeat(np.arange(samples), count)
    ones, sample_ids = np.ones(samples * count, np.int64), np.arange(samples)
    words = MaskableWords(
        np.arange(samples * count), ones, sample_index, sample_ids * count, sample_ids, np.full(samples, 4.0), 0, 0
    )
    units = TwoWordMasking().select_units(words).reshape(samples, count)
    starts = [tuple(i for i in range(count) if row[i] >= 0 and (i == 0 or row[i] != row[i - 1])) for row in units]
    counts_by_starts = {run_starts: starts.count(run_starts) for run_starts in set(starts) if len(run_starts) == 2}
    assert set(counts_by_starts) == {(a, b) for a in range(5) for b in range(a + 2, 5)}  # e.g. (0, 2) are adjacent
    assert list(counts_by_starts.values()) == pytest.approx([sum(counts_by_starts.values()) / 6] * 6, rel=0.06)


class TwoWordMasking(RunMasking, frozen=True):
    """Runs of exactly two words."""

    def length_probs(self):
        return np.array([0.0, 1.0])


def test_span_masking_masks_adjacent_tokens():
    token_batch, span_batch = (make_loader(make_english_corpus(300), masking)(0) for masking in (TokenMasking(), SpanMasking()))
    adjacent_fraction = lambda batch: (np.diff(batch.output_indices) == 1).mean()
    assert adjacent_fraction(span_batch) > 3 * adjacent_fraction(token_batch)


def test_masking_of_a_sample_does_not_depend_on_its_batch():
    corpus = make_english_corpus(300)
    loader = make_loader(corpus, WholeWordMasking())
    samples, epoch = loader.select_samples(0)
    batch = loader.collator(samples, epoch)
    single_batches = [loader.collator(samples.select(np.array([i])), epoch) for i in range(20)]
    ends = batch.lengths.cumsum()
    for i, single in enumerate(single_batches):
        assert np.array_equal(batch.input_ids[ends[i] - batch.lengths[i] : ends[i]], single.input_ids)


def test_masking_changes_each_epoch_unless_static():
    corpus = make_english_corpus(100)
    dynamic = make_loader(corpus, TokenMasking(), Windows())
    static = BatchLoader(dynamic.collator, Windows(), dynamic.document_ids, 128, 65_536, dupe_factor=2)
    masks_of_epoch = lambda loader, epoch: {
        (tuple(batch.target_ids), tuple(batch.output_indices)) for batch in [loader(epoch * loader.batches_per_epoch)]
    }
    starts_of_epoch = lambda loader, epoch: np.sort(loader._epoch_index(epoch)[0].span_starts)
    assert masks_of_epoch(dynamic, 0) != masks_of_epoch(dynamic, 2)
    assert np.array_equal(starts_of_epoch(static, 0), starts_of_epoch(static, 2)) and not np.array_equal(
        starts_of_epoch(static, 0), starts_of_epoch(static, 1)
    )
    collator = static.collator
    assert np.array_equal(
        collator(static._epoch_index(0)[0], static._sampling_epoch(0)).input_ids,
        collator(static._epoch_index(2)[0], static._sampling_epoch(2)).input_ids,
    )


def test_masking_meets_other_mlm_probabilities():
    for mlm_probability in (0.05, 0.4):
        loader = make_loader(make_english_corpus(500), WholeWordMasking(), mlm_probability=mlm_probability)
        num_maskable = sum((~loader.collator.corpus.tokenizer.is_special[unmasked_ids(loader, k)]).sum() for k in range(2))
        assert sum(len(loader(k).output_indices) for k in range(2)) / num_maskable == pytest.approx(mlm_probability, rel=0.03)
