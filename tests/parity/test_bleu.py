"""BLEU and chrF agree with sacreBLEU."""

import sys

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from bertsmith.metrics.bleu import bleu_counts, bleu_from_counts, chrf, tokenize

TOKENIZERS = ["13a", "intl", "zh", "char", "none"]
WORDS = [
    "the",
    "cat",
    "sat",
    "1,000.5",
    "3-4",
    "U.S.",
    "&quot;yes&quot;",
    "&amp;lt;",
    "don't",
    "天地玄黄",
    "，",
    "x-\ny",
    "€5",
    "«ok»",
]
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=6)
# Characters of the basic plane, without those that a newer Unicode version may have added.
TEXTS = st.text(st.characters(min_codepoint=1, max_codepoint=0xFFFF, exclude_categories=["Cs", "Cn"]), max_size=30)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(pairs=PAIRS)
def test_bleu_matches_sacrebleu(tokenizer, pairs):
    predicted, gold = map(list, zip(*pairs, strict=True))
    value = bleu_from_counts(bleu_counts(predicted, gold, tokenizer), np.zeros(len(gold)))
    expected = sacrebleu.corpus_bleu(predicted, [gold], tokenize=tokenizer).score / 100
    assert float(value) == pytest.approx(expected, abs=1e-9)


@given(pairs=st.lists(st.tuples(SENTENCES | TEXTS, SENTENCES | TEXTS), min_size=1, max_size=6))
def test_chrf_matches_sacrebleu(pairs):
    predicted, gold = map(list, zip(*pairs, strict=True))
    assert chrf(predicted, gold) == pytest.approx(sacrebleu.corpus_chrf(predicted, [gold]).score / 100, abs=1e-9)


@pytest.mark.parametrize("tokenizer", ["13a", "zh", "char", "none"])
@given(text=SENTENCES | TEXTS)
def test_bleu_tokenizers_match_sacrebleu(tokenizer, text):
    expected = BLEU(tokenize=tokenizer).tokenizer(text.rstrip()).split()
    assert tokenize(text, tokenizer) == expected


@pytest.mark.parametrize("tokenizer", ["13a", "zh"])
def test_bleu_tokenizers_match_sacrebleu_for_every_character(tokenizer):
    expected = BLEU(tokenize=tokenizer).tokenizer
    different = [
        point
        for point in range(1, sys.maxunicode + 1)
        if not 0xD800 <= point < 0xE000 and tokenize(f"a{chr(point)}b", tokenizer) != expected(f"a{chr(point)}b").split()
    ]
    assert different == []


def test_bleu_without_a_match_or_without_words_is_zero():
    for predicted, gold in (("", "a b c d"), ("a b c d", ""), ("a b c d", "e f g h"), ("a b", "a b")):
        counts = bleu_counts([predicted], [gold])
        assert bleu_from_counts(counts, np.zeros(1)) == pytest.approx(sacrebleu.corpus_bleu([predicted], [[gold]]).score / 100)
