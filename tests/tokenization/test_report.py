"""Tokenizer quality measures against hand-computed values."""

import pytest

from bertsmith.errors import UserError
from bertsmith.tokenization.report import measure_quality

TOKEN_IDS = {"the": [1], "cats": [2, 3], "☃": [0], "a☃b": [4, 0, 5], "sat": [6]}


def encode_words(words: list[str]) -> list[list[int]]:
    return [TOKEN_IDS[word] for word in words]


def test_measure_quality_matches_hand_computed_values():
    quality = measure_quality(
        [("the", 10), ("cats", 4), ("☃", 2), ("a☃b", 3), ("sat", 1)], encode_words, unk_token_id=0, vocab_size=9
    )
    num_tokens = 10 + 4 * 2 + 2 + 3 * 3 + 1
    num_chars = 30 + 16 + 2 + 9 + 3
    assert (quality.words, quality.distinct_words) == (20, 5)
    assert quality.fertility == pytest.approx(num_tokens / 20)
    assert quality.single_token_rate == pytest.approx(11 / 20)  # an unknown word is one token, but not known
    assert quality.unknown_word_rate == pytest.approx(5 / 20)
    assert quality.coverage == pytest.approx((num_chars - 2 - 3) / num_chars)
    assert quality.characters_per_token == pytest.approx(num_chars / num_tokens)
    assert quality.unused_tokens == 2  # 7 and 8
    assert quality.costliest_words == [("a☃b", 3), ("cats", 2)]  # 6 and 4 extra tokens


def test_measure_quality_without_unk_token():
    quality = measure_quality([("the", 1), ("☃", 1)], encode_words, unk_token_id=None, vocab_size=7)
    assert (quality.unknown_word_rate, quality.coverage, quality.single_token_rate) == (0, 1, 1)


def test_measure_quality_over_many_batches():
    batch_sizes = []

    def encode_by_length(words: list[str]) -> list[list[int]]:
        batch_sizes.append(len(words))
        return [[7] * len(word) for word in words]

    counts = [("x" * (1 + index % 9), 1 + index) for index in range(10_000)]
    quality = measure_quality(iter(counts), encode_by_length, unk_token_id=None, vocab_size=8)
    assert sum(batch_sizes) == 10_000 and max(batch_sizes) < 5000
    assert quality.fertility == pytest.approx(sum(len(w) * count for w, count in counts) / sum(count for _, count in counts))
    costs = sorted((count * (len(w) - 1), w) for w, count in counts)[-20:]
    assert quality.costliest_words == [(word, len(word)) for _, word in reversed(costs)]


def test_quality_table_is_formatted():
    rows = dict(measure_quality([("the", 3000), ("cats", 1000)], encode_words, unk_token_id=0, vocab_size=9).table())
    assert rows["words"] == "4,000"
    assert rows["fertility (tokens per word)"] == "1.250"
    assert rows["words of a single token"] == "75.00%"
    assert rows["words with most extra tokens"] == "cats (2)"


def test_measure_quality_refuses_no_words():
    with pytest.raises(UserError, match="no words"):
        measure_quality([], encode_words, unk_token_id=0, vocab_size=9)
