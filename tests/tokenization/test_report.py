"""The quality of a vocabulary, against figures worked out by hand."""

import pytest

from bertsmith.errors import UserError
from bertsmith.tokenization.report import measure_quality

CUTS = {"the": [1], "cats": [2, 3], "☃": [0], "a☃b": [4, 0, 5], "sat": [6]}


def cut(words: list[str]) -> list[list[int]]:
    return [CUTS[word] for word in words]


def test_figures_agree_with_those_worked_out_by_hand():
    quality = measure_quality([("the", 10), ("cats", 4), ("☃", 2), ("a☃b", 3), ("sat", 1)], cut, unk_token_id=0, vocab_size=9)
    pieces = 10 + 4 * 2 + 2 + 3 * 3 + 1
    characters = 30 + 16 + 2 + 9 + 3
    assert (quality.words, quality.distinct) == (20, 5)
    assert quality.fertility == pytest.approx(pieces / 20)
    assert quality.whole == pytest.approx(11 / 20)  # an unknown word is one piece, but not whole
    assert quality.unknown == pytest.approx(5 / 20)
    assert quality.coverage == pytest.approx((characters - 2 - 3) / characters)
    assert quality.characters_per_piece == pytest.approx(characters / pieces)
    assert quality.unused == 2  # 7 and 8
    assert quality.worst == [("a☃b", 3), ("cats", 2)]  # 6 and 4 pieces more than one a word


def test_without_an_unknown_id_everything_is_known():
    quality = measure_quality([("the", 1), ("☃", 1)], cut, unk_token_id=None, vocab_size=7)
    assert (quality.unknown, quality.coverage, quality.whole) == (0, 1, 1)


def test_more_words_than_a_batch_holds_are_all_measured_and_the_costliest_kept():
    sizes = []

    def lengths(words: list[str]) -> list[list[int]]:
        sizes.append(len(words))
        return [[7] * len(word) for word in words]

    counts = [("x" * (1 + number % 9), 1 + number) for number in range(10_000)]
    quality = measure_quality(iter(counts), lengths, unk_token_id=None, vocab_size=8)
    assert sum(sizes) == 10_000 and max(sizes) < 5000
    assert quality.fertility == pytest.approx(sum(len(w) * n for w, n in counts) / sum(n for _, n in counts))
    costs = sorted((n * (len(w) - 1), w) for w, n in counts)[-20:]
    assert quality.worst == [(word, len(word)) for _, word in reversed(costs)]


def test_the_table_is_readable():
    rows = dict(measure_quality([("the", 3000), ("cats", 1000)], cut, unk_token_id=0, vocab_size=9).table())
    assert rows["words"] == "4,000"
    assert rows["pieces per word"] == "1.250"
    assert rows["words in one piece"] == "75.00%"
    assert rows["costliest words"] == "cats (2)"


def test_no_words_is_an_error_that_says_so():
    with pytest.raises(UserError, match="no words"):
        measure_quality([], cut, unk_token_id=0, vocab_size=9)
