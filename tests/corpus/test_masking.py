"""What is hidden: the shares asked for, whole units, never a special token, never another length."""

from pathlib import Path

import numpy as np
import pytest

from bertsmith.corpus.collate import Collator
from bertsmith.corpus.loader import BatchLoader
from bertsmith.corpus.masking import MaskableWords, NgramMasking, RunMasking, SpanMasking, TokenMasking, WholeWordMasking
from bertsmith.corpus.sampling import FullSentences, NextSentence, Windows
from bertsmith.corpus.store import Corpus
from bertsmith.tokenization.tokenizer import Tokenizer

EVERY = [TokenMasking(), WholeWordMasking(), SpanMasking(), NgramMasking()]
every_mask = pytest.mark.parametrize("masks", EVERY, ids=lambda m: type(m).__name__)
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *(f"w{i}" for i in range(500))]
VOCABULARY += [*(f"##p{i}" for i in range(300)), *(chr(0x4E00 + i) for i in range(400))]


def english(documents=3000, seed=0):
    """Words of one to four pieces."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 12, documents)
    lengths = rng.integers(4, 40, sizes.sum())
    total = lengths.sum()
    ids = np.where(rng.random(total) < 0.3, rng.integers(506, 806, total), rng.integers(6, 506, total))
    ids[rng.random(total) < 0.01] = 1
    return corpus_of(ids, lengths, sizes)


def chinese(documents=3000, seed=0):
    """Characters, with words marked apart from the ids."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 12, documents)
    lengths = rng.integers(4, 40, sizes.sum())
    total = lengths.sum()
    return corpus_of(rng.integers(806, 1206, total), lengths, sizes, np.packbits(rng.random(total) < 0.6))


def corpus_of(ids, lengths, sizes, words=None):
    starts = np.append(0, lengths.cumsum()), np.append(0, sizes.cumsum())
    corpus = Corpus(Path("made"), ids.astype(np.uint16), *starts, words, {})
    corpus.__dict__["tokenizer"] = Tokenizer.from_vocab(VOCABULARY)
    return corpus


def batches(corpus, masks, view=None, seed=0, tokens=65_536, rate=0.15, length=128):
    maker = Collator(corpus.path, masks, rate, seed)
    maker.__dict__["corpus"] = corpus
    return BatchLoader(maker, view or NextSentence(), np.arange(len(corpus.documents) - 1), length, tokens)


def clean(reading, k):
    """Batch k without its masks."""
    plan, _ = reading.rows(k)
    return reading.maker._pack(plan)[0]


@every_mask
@pytest.mark.parametrize("language", [english, chinese])
def test_lengths_and_unchosen_ids_never_change(masks, language):
    reading = batches(language(300), masks)
    for k in range(3):
        batch, ids = reading(k), clean(reading, k)
        assert len(batch.input_ids) == len(ids) == batch.lengths.sum()
        asked = np.zeros(len(ids), bool)
        asked[batch.output_indices] = True
        assert np.array_equal(batch.input_ids[~asked], ids[~asked])
        assert np.array_equal(batch.target_ids, ids[batch.output_indices])
        tokenizer = reading.collator.corpus.tokenizer
        assert not tokenizer.is_special[batch.target_ids].any()  # nor [UNK], whose answer nobody knows
        swapped = batch.input_ids[batch.output_indices][batch.input_ids[batch.output_indices] != tokenizer.mask_token_id]
        assert not tokenizer.is_special[swapped].any()


@every_mask
@pytest.mark.parametrize("language", [english, chinese])
def test_fifteen_in_a_hundred_by_eighty_ten_ten_over_a_hundred_thousand_sequences(masks, language):
    reading = batches(language(), masks)
    tokenizer = reading.collator.corpus.tokenizer
    k = sequences = 0
    shares, fates = [], []
    while sequences < 100_000:
        batch, ids = reading(k), clean(reading, k)
        sequences, k = sequences + len(batch.lengths), k + 1
        shares.append((len(batch.output_indices), (~tokenizer.is_special[ids]).sum()))
        shown = batch.input_ids[batch.output_indices]
        units = (
            shown == tokenizer.mask_token_id,
            (shown != tokenizer.mask_token_id) & (shown != batch.target_ids),
            shown == batch.target_ids,
        )
        fates.append([part.sum() for part in units])
    chosen, free = np.array(shares).sum(0)
    # A unit of several tokens is one draw: the error is that of the number of units, at least a tenth of the tokens.
    assert chosen / free == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / (free / 10)) ** 0.5)
    got = np.array(fates).sum(0) / chosen
    same = 0.1 / len(tokenizer.non_special_ids)  # a swap may draw the word itself
    assert got == pytest.approx([0.8, 0.1 - same, 0.1 + same], abs=4 * (0.16 / (chosen / 10)) ** 0.5)


@pytest.mark.parametrize("language", [english, chinese])
@pytest.mark.parametrize("masks", [WholeWordMasking(), SpanMasking(), NgramMasking()], ids=lambda m: type(m).__name__)
def test_words_are_hidden_whole_and_share_one_fate(masks, language):
    reading = batches(language(300), masks)
    maker, tokenizer = reading.collator, reading.collator.corpus.tokenizer
    for k in range(3):
        batch, (plan, _) = reading(k), reading.select_samples(k)
        ids, source, _ = maker._pack(plan)
        asked = np.zeros(len(ids), bool)
        asked[batch.output_indices] = True
        free = (source >= 0) & ~tokenizer.is_special[ids]
        inner = np.flatnonzero(free[1:] & free[:-1]) + 1  # tokens behind a token that may be hidden
        inner = inner[~maker.corpus.is_word_start(source[inner])]  # and of the same word
        assert (asked[inner] == asked[inner - 1]).all()
        both = inner[asked[inner]]
        assert (
            (batch.input_ids[both] == tokenizer.mask_token_id) == (batch.input_ids[both - 1] == tokenizer.mask_token_id)
        ).all()


def test_a_share_of_the_samples_has_its_pieces_hidden_one_by_one():
    reading = batches(chinese(2000), WholeWordMasking(singly=0.3))
    whole, rows = batches(chinese(2000), WholeWordMasking()), [reading.select_samples(k) for k in range(4)]
    broken, kept, shares = [], [], []
    for k, (plan, epoch) in enumerate(rows):
        ids, source, lengths = reading.collator._pack(plan)
        words = reading.collator._maskable_words(ids, source, lengths, plan, epoch)
        longest = np.zeros(len(lengths), np.int64)
        np.maximum.at(longest, words.sample_index, words.sizes)
        apart = longest == 1
        broken.append(apart)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        asked, other = (np.bincount(owner[one(k).output_indices], minlength=len(lengths)) for one in (reading, whole))
        kept.append((asked == other)[~apart])
        shares.append(asked.sum() / words.sizes.sum())
    assert np.concatenate(broken).mean() == pytest.approx(0.3, abs=0.05)
    assert np.concatenate(kept).all()  # the others are as they would be without it
    assert np.mean(shares) == pytest.approx(0.15, abs=0.01)


def test_spans_have_the_published_lengths():
    odds = SpanMasking().length_probs()
    assert odds.sum() == pytest.approx(1) and len(odds) == 10
    assert (odds * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.01)  # SpanBERT, section 3.1
    assert NgramMasking().length_probs() == pytest.approx(np.array([6, 3, 2]) / 11)  # ALBERT, section 4.1


def units_of(reading, k):
    """The words of batch k, and the unit of each."""
    plan, epoch = reading.rows(k)
    words = reading.maker._words(*reading.maker._pack(plan), plan, epoch)
    return words, reading.maker.masks.units(words)


@pytest.mark.parametrize("language", [english, chinese])
@pytest.mark.parametrize("length", [64, 128, 512])
@pytest.mark.parametrize("masks", [SpanMasking(), NgramMasking()], ids=lambda m: type(m).__name__)
def test_runs_that_are_hidden_have_the_lengths_that_were_asked_for(masks, length, language):
    reading = batches(language(), masks, FullSentences(), length=length)
    sizes, hidden, free = [], 0, 0
    for k in range(6):
        words, unit = units_of(reading, k)
        taken = unit >= 0
        sizes.append(np.unique(words.sample_index[taken] * 1000 + unit[taken], return_counts=True)[1])
        hidden, free = hidden + words.sizes[taken].sum(), free + words.sizes.sum()
    sizes, odds = np.concatenate(sizes), masks.length_probs()
    # Some 8,000 runs, whose lengths deviate by 0.7 (spans) of their mean: three errors of the mean are 2.4 %.
    assert sizes.mean() == pytest.approx((odds * np.arange(1, len(odds) + 1)).sum(), rel=0.024)
    shares = np.bincount(sizes, minlength=len(odds) + 1)[1:] / len(sizes)
    assert shares == pytest.approx(odds, abs=4 * (0.25 / len(sizes)) ** 0.5)
    assert hidden / free == pytest.approx(0.15, rel=0.03)  # 6,000 samples that miss their quota by half: four errors


@pytest.mark.parametrize("rate", [0.15, 0.9])
@pytest.mark.parametrize("masks", [SpanMasking(), NgramMasking(longest=40)], ids=lambda m: type(m).__name__)
def test_a_unit_is_one_run_and_none_leaves_its_sample(masks, rate):
    words, unit = units_of(batches(english(400), masks, rate=rate), 0)
    assert len(unit) == len(words.starts)
    for sample in range(len(words.sample_ids)):
        own = unit[words.sample_index == sample]
        for number in np.unique(own[own >= 0]):
            assert np.ptp(np.flatnonzero(own == number)) + 1 == (own == number).sum()
    assert words.sizes[unit >= 0].sum() / words.sizes.sum() == pytest.approx(rate, rel=0.05)


def test_every_place_for_a_run_is_as_likely_and_runs_may_touch():
    samples, count = 30_000, 6
    numbers = np.repeat(np.arange(samples), count)
    ones, names = np.ones(samples * count, np.int64), np.arange(samples)
    words = MaskableWords(np.arange(samples * count), ones, numbers, names * count, names, np.full(samples, 4.0), 0, 0)
    unit = Pairs().select_units(words).reshape(samples, count)
    starts = [tuple(i for i in range(count) if row[i] >= 0 and (i == 0 or row[i] != row[i - 1])) for row in unit]
    ways = {way: starts.count(way) for way in set(starts) if len(way) == 2}
    assert set(ways) == {(a, b) for a in range(5) for b in range(a + 2, 5)}  # (0, 2) and its like touch
    assert list(ways.values()) == pytest.approx([sum(ways.values()) / 6] * 6, rel=0.06)


class Pairs(RunMasking, frozen=True):
    """Always two words."""

    def length_probs(self):
        return np.array([0.0, 1.0])


def test_spans_hide_runs():
    single, runs = (batches(english(300), masks)(0) for masks in (TokenMasking(), SpanMasking()))
    together = lambda batch: (np.diff(batch.where) == 1).mean()
    assert together(runs) > 3 * together(single)


def test_a_sample_is_masked_alike_whatever_shares_its_batch():
    corpus = english(300)
    reading = batches(corpus, WholeWordMasking())
    plan, epoch = reading.select_samples(0)
    together = reading.collator(plan, epoch)
    alone = [reading.collator(plan.select(np.array([i])), epoch) for i in range(20)]
    ends = together.lengths.cumsum()
    for i, single in enumerate(alone):
        assert np.array_equal(together.input_ids[ends[i] - together.lengths[i] : ends[i]], single.input_ids)


def test_masks_are_new_each_epoch_unless_they_are_static():
    corpus = english(100)
    moving = batches(corpus, TokenMasking(), Windows())
    fixed = BatchLoader(moving.collator, Windows(), moving.document_ids, 128, 65_536, dupe_factor=2)
    masks = lambda reading, epoch: {(tuple(batch.words), tuple(batch.where)) for batch in [reading(epoch * reading.an_epoch)]}
    plans = lambda reading, epoch: np.sort(reading._planned(epoch)[0].starts)
    assert masks(moving, 0) != masks(moving, 2)
    assert np.array_equal(plans(fixed, 0), plans(fixed, 2)) and not np.array_equal(plans(fixed, 0), plans(fixed, 1))
    maker = fixed.collator
    assert np.array_equal(
        maker(fixed._epoch_index(0)[0], fixed._sampling_epoch(0)).input_ids,
        maker(fixed._epoch_index(2)[0], fixed._sampling_epoch(2)).input_ids,
    )


def test_other_rates_are_met_too():
    for rate in (0.05, 0.4):
        reading = batches(english(500), WholeWordMasking(), rate=rate)
        tokens = sum((~reading.collator.corpus.tokenizer.is_special[clean(reading, k)]).sum() for k in range(2))
        assert sum(len(reading(k).output_indices) for k in range(2)) / tokens == pytest.approx(rate, rel=0.03)
