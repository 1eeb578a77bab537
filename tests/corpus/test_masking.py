"""What is hidden: the shares asked for, whole units, never a special token, never another length."""

from pathlib import Path

import numpy as np
import pytest

from bertsmith.corpus.collate import Maker
from bertsmith.corpus.loader import Batches
from bertsmith.corpus.masking import Ngrams, Pieces, Runs, Spans, WholeWords, Words
from bertsmith.corpus.sampling import FullSentences, NextSentence, Windows
from bertsmith.corpus.store import Corpus
from bertsmith.tokenization.tokenizer import Tokenizer

EVERY = [Pieces(), WholeWords(), Spans(), Ngrams()]
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
    corpus.__dict__["tokenizer"] = Tokenizer.google(VOCABULARY)
    return corpus


def batches(corpus, masks, view=None, seed=0, tokens=65_536, rate=0.15, length=128):
    maker = Maker(corpus.path, masks, rate, seed)
    maker.__dict__["corpus"] = corpus
    return Batches(maker, view or NextSentence(), np.arange(len(corpus.documents) - 1), length, tokens)


def clean(reading, k):
    """Batch k without its masks."""
    plan, _ = reading.rows(k)
    return reading.maker._packed(plan)[0]


@every_mask
@pytest.mark.parametrize("language", [english, chinese])
def test_lengths_and_unchosen_ids_never_change(masks, language):
    reading = batches(language(300), masks)
    for k in range(3):
        batch, ids = reading(k), clean(reading, k)
        assert len(batch.tokens) == len(ids) == batch.lengths.sum()
        asked = np.zeros(len(ids), bool)
        asked[batch.where] = True
        assert np.array_equal(batch.tokens[~asked], ids[~asked])
        assert np.array_equal(batch.words, ids[batch.where])
        tokenizer = reading.maker.corpus.tokenizer
        assert not tokenizer.special[batch.words].any()  # nor [UNK], whose answer nobody knows
        swapped = batch.tokens[batch.where][batch.tokens[batch.where] != tokenizer.mask]
        assert not tokenizer.special[swapped].any()


@every_mask
@pytest.mark.parametrize("language", [english, chinese])
def test_fifteen_in_a_hundred_by_eighty_ten_ten_over_a_hundred_thousand_sequences(masks, language):
    reading = batches(language(), masks)
    tokenizer = reading.maker.corpus.tokenizer
    k = sequences = 0
    shares, fates = [], []
    while sequences < 100_000:
        batch, ids = reading(k), clean(reading, k)
        sequences, k = sequences + len(batch.lengths), k + 1
        shares.append((len(batch.where), (~tokenizer.special[ids]).sum()))
        shown = batch.tokens[batch.where]
        units = (shown == tokenizer.mask, (shown != tokenizer.mask) & (shown != batch.words), shown == batch.words)
        fates.append([part.sum() for part in units])
    chosen, free = np.array(shares).sum(0)
    # A unit of several tokens is one draw: the error is that of the number of units, at least a tenth of the tokens.
    assert chosen / free == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / (free / 10)) ** 0.5)
    got = np.array(fates).sum(0) / chosen
    same = 0.1 / len(tokenizer.ordinary)  # a swap may draw the word itself
    assert got == pytest.approx([0.8, 0.1 - same, 0.1 + same], abs=4 * (0.16 / (chosen / 10)) ** 0.5)


@pytest.mark.parametrize("language", [english, chinese])
@pytest.mark.parametrize("masks", [WholeWords(), Spans(), Ngrams()], ids=lambda m: type(m).__name__)
def test_words_are_hidden_whole_and_share_one_fate(masks, language):
    reading = batches(language(300), masks)
    maker, tokenizer = reading.maker, reading.maker.corpus.tokenizer
    for k in range(3):
        batch, (plan, _) = reading(k), reading.rows(k)
        ids, source, _ = maker._packed(plan)
        asked = np.zeros(len(ids), bool)
        asked[batch.where] = True
        free = (source >= 0) & ~tokenizer.special[ids]
        inner = np.flatnonzero(free[1:] & free[:-1]) + 1  # tokens behind a token that may be hidden
        inner = inner[~maker.corpus.starts_word(source[inner])]  # and of the same word
        assert (asked[inner] == asked[inner - 1]).all()
        both = inner[asked[inner]]
        assert ((batch.tokens[both] == tokenizer.mask) == (batch.tokens[both - 1] == tokenizer.mask)).all()


def test_a_share_of_the_samples_has_its_pieces_hidden_one_by_one():
    reading = batches(chinese(2000), WholeWords(singly=0.3))
    whole, rows = batches(chinese(2000), WholeWords()), [reading.rows(k) for k in range(4)]
    broken, kept, shares = [], [], []
    for k, (plan, epoch) in enumerate(rows):
        ids, source, lengths = reading.maker._packed(plan)
        words = reading.maker._words(ids, source, lengths, plan, epoch)
        longest = np.zeros(len(lengths), np.int64)
        np.maximum.at(longest, words.sample, words.sizes)
        apart = longest == 1
        broken.append(apart)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        asked, other = (np.bincount(owner[one(k).where], minlength=len(lengths)) for one in (reading, whole))
        kept.append((asked == other)[~apart])
        shares.append(asked.sum() / words.sizes.sum())
    assert np.concatenate(broken).mean() == pytest.approx(0.3, abs=0.05)
    assert np.concatenate(kept).all()  # the others are as they would be without it
    assert np.mean(shares) == pytest.approx(0.15, abs=0.01)


def test_spans_have_the_published_lengths():
    odds = Spans().odds()
    assert odds.sum() == pytest.approx(1) and len(odds) == 10
    assert (odds * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.01)  # SpanBERT, section 3.1
    assert Ngrams().odds() == pytest.approx(np.array([6, 3, 2]) / 11)  # ALBERT, section 4.1


def units_of(reading, k):
    """The words of batch k, and the unit of each."""
    plan, epoch = reading.rows(k)
    words = reading.maker._words(*reading.maker._packed(plan), plan, epoch)
    return words, reading.maker.masks.units(words)


@pytest.mark.parametrize("language", [english, chinese])
@pytest.mark.parametrize("length", [64, 128, 512])
@pytest.mark.parametrize("masks", [Spans(), Ngrams()], ids=lambda m: type(m).__name__)
def test_runs_that_are_hidden_have_the_lengths_that_were_asked_for(masks, length, language):
    reading = batches(language(), masks, FullSentences(), length=length)
    sizes, hidden, free = [], 0, 0
    for k in range(6):
        words, unit = units_of(reading, k)
        taken = unit >= 0
        sizes.append(np.unique(words.sample[taken] * 1000 + unit[taken], return_counts=True)[1])
        hidden, free = hidden + words.sizes[taken].sum(), free + words.sizes.sum()
    sizes, odds = np.concatenate(sizes), masks.odds()
    # Some 8,000 runs, whose lengths deviate by 0.7 (spans) of their mean: three errors of the mean are 2.4 %.
    assert sizes.mean() == pytest.approx((odds * np.arange(1, len(odds) + 1)).sum(), rel=0.024)
    shares = np.bincount(sizes, minlength=len(odds) + 1)[1:] / len(sizes)
    assert shares == pytest.approx(odds, abs=4 * (0.25 / len(sizes)) ** 0.5)
    assert hidden / free == pytest.approx(0.15, rel=0.03)  # 6,000 samples that miss their quota by half: four errors


@pytest.mark.parametrize("rate", [0.15, 0.9])
@pytest.mark.parametrize("masks", [Spans(), Ngrams(longest=40)], ids=lambda m: type(m).__name__)
def test_a_unit_is_one_run_and_none_leaves_its_sample(masks, rate):
    words, unit = units_of(batches(english(400), masks, rate=rate), 0)
    assert len(unit) == len(words.starts)
    for sample in range(len(words.names)):
        own = unit[words.sample == sample]
        for number in np.unique(own[own >= 0]):
            assert np.ptp(np.flatnonzero(own == number)) + 1 == (own == number).sum()
    assert words.sizes[unit >= 0].sum() / words.sizes.sum() == pytest.approx(rate, rel=0.05)


def test_every_place_for_a_run_is_as_likely_and_runs_may_touch():
    samples, count = 30_000, 6
    numbers = np.repeat(np.arange(samples), count)
    ones, names = np.ones(samples * count, np.int64), np.arange(samples)
    words = Words(np.arange(samples * count), ones, numbers, names * count, names, np.full(samples, 4.0), 0, 0)
    unit = Pairs().units(words).reshape(samples, count)
    starts = [tuple(i for i in range(count) if row[i] >= 0 and (i == 0 or row[i] != row[i - 1])) for row in unit]
    ways = {way: starts.count(way) for way in set(starts) if len(way) == 2}
    assert set(ways) == {(a, b) for a in range(5) for b in range(a + 2, 5)}  # (0, 2) and its like touch
    assert list(ways.values()) == pytest.approx([sum(ways.values()) / 6] * 6, rel=0.06)


class Pairs(Runs, frozen=True):
    """Always two words."""

    def odds(self):
        return np.array([0.0, 1.0])


def test_spans_hide_runs():
    single, runs = (batches(english(300), masks)(0) for masks in (Pieces(), Spans()))
    together = lambda batch: (np.diff(batch.where) == 1).mean()
    assert together(runs) > 3 * together(single)


def test_a_sample_is_masked_alike_whatever_shares_its_batch():
    corpus = english(300)
    reading = batches(corpus, WholeWords())
    plan, epoch = reading.rows(0)
    together = reading.maker(plan, epoch)
    alone = [reading.maker(plan.chosen(np.array([i])), epoch) for i in range(20)]
    ends = together.lengths.cumsum()
    for i, single in enumerate(alone):
        assert np.array_equal(together.tokens[ends[i] - together.lengths[i] : ends[i]], single.tokens)


def test_masks_are_new_each_epoch_unless_they_are_static():
    corpus = english(100)
    moving = batches(corpus, Pieces(), Windows())
    fixed = Batches(moving.maker, Windows(), moving.documents, 128, 65_536, repeats=2)
    masks = lambda reading, epoch: {(tuple(batch.words), tuple(batch.where)) for batch in [reading(epoch * reading.an_epoch)]}
    plans = lambda reading, epoch: np.sort(reading._planned(epoch)[0].starts)
    assert masks(moving, 0) != masks(moving, 2)
    assert np.array_equal(plans(fixed, 0), plans(fixed, 2)) and not np.array_equal(plans(fixed, 0), plans(fixed, 1))
    maker = fixed.maker
    assert np.array_equal(
        maker(fixed._planned(0)[0], fixed._drawn(0)).tokens, maker(fixed._planned(2)[0], fixed._drawn(2)).tokens
    )


def test_other_rates_are_met_too():
    for rate in (0.05, 0.4):
        reading = batches(english(500), WholeWords(), rate=rate)
        tokens = sum((~reading.maker.corpus.tokenizer.special[clean(reading, k)]).sum() for k in range(2))
        assert sum(len(reading(k).where) for k in range(2)) / tokens == pytest.approx(rate, rel=0.03)
