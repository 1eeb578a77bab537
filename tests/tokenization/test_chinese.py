"""Chinese word segmentation: word starts per character and per token, and loading of segmenters."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.tokenization.chinese import (
    IDEOGRAPH,
    char_to_token_starts,
    char_word_starts,
    first_tokens_of_words,
    load_segmenter,
    token_word_starts,
)


def is_ideograph(char: str) -> bool:
    return IDEOGRAPH.fullmatch(char) is not None


def test_char_word_starts_follow_the_segmenter():
    assert char_word_starts("我们学习语言", ["我们", "学习", "语言"]).tolist() == [True, False] * 3


def test_char_word_starts_leave_other_characters_to_the_tokenizer():
    char_starts = char_word_starts("重3.14吨级", ["重", "3.14", "吨级"])
    assert char_starts.tolist() == [True, True, True, True, True, True, False]


def test_word_starts_of_empty_text():
    assert char_word_starts("", []).shape == (0,)
    assert char_to_token_starts(char_word_starts("", []), [], np.zeros(0, bool)).shape == (0,)


@pytest.mark.parametrize(
    ("words", "position"), [(["我们", "学", "语言"], 3), (["我们"], 2), (["我们学习语言", "吗"], 6), (["你们"], 0)]
)
def test_char_word_starts_refuse_words_that_differ_from_the_text(words, position):
    with pytest.raises(UserError, match=f"at character {position} "):
        char_word_starts("我们学习语言", words)


def test_char_to_token_starts_skip_continuations_and_inner_ideographs():
    text = "我们用tokenizers"
    char_starts = char_word_starts(text, ["我们", "用", "tokenizers"])
    offsets = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 8), (8, 13), (0, 0)]  # [CLS] 我 们 用 token ##izers [SEP]
    is_continuation = np.array([False, False, False, False, False, True, False])
    assert char_to_token_starts(char_starts, offsets, is_continuation).tolist() == [True, True, False, True, True, False, True]


def test_char_to_token_starts_accept_empty_token_after_the_text():
    assert char_to_token_starts(char_word_starts("好", ["好"]), [(0, 1), (1, 1)], np.zeros(2, bool)).tolist() == [True, True]


def test_first_tokens_of_words_with_byte_level_tokens_and_spaces():
    text, words = "我们 the天", ["我们", " ", "the", "天"]
    byte_offsets = [(0, 1)] * 3 + [(1, 2)] * 3 + [(2, 3), (3, 4), (4, 5), (5, 6)] + [(6, 7)] * 3
    expected = [True, *[False] * 5, True, False, False, False, True, False, False]
    assert first_tokens_of_words(text, words, byte_offsets).tolist() == expected
    trimmed_offsets = [(0, 1), (0, 1), (1, 2), (3, 6), (6, 7)]  # without the space
    assert first_tokens_of_words(text, words, trimmed_offsets).tolist() == [True, False, False, True, True]
    overlapping_offsets = [(0, 2), (1, 4), (4, 7)]  # tokens with bytes of two words
    assert first_tokens_of_words(text, words, overlapping_offsets).tolist() == [True, True, True]
    assert first_tokens_of_words("", [], []).shape == (0,)


def test_token_word_starts_combine_space_prefixes_and_segmenter():
    text, offsets = "我们 a.b", [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]
    is_continuation = np.array([True, True, False, True, True])  # only " a" is marked
    assert token_word_starts(text, ["我们", " ", "a.b"], offsets, is_continuation, True).tolist() == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert token_word_starts(text, iter(["我们", " ", "a", ".b"]), offsets, is_continuation, True).tolist() == [
        True,
        False,
        True,
        True,
        False,
    ]


@given(st.lists(st.text("我们ab。", min_size=1, max_size=4), max_size=12), st.randoms(use_true_random=False))
def test_first_tokens_of_words_match_brute_force(words, rng):
    text = "".join(words)
    boundaries = sorted({0, len(text), *rng.sample(range(len(text) + 1), len(text) // 2)})
    token_spans = [
        pair for pair in pairwise(boundaries) for _ in range(rng.randint(1, 3))
    ]  # several byte-level tokens may share a span
    word_offsets = [sum(map(len, words[:index])) for index in range(len(words))]
    expected = {min(index for index, (start, end) in enumerate(token_spans) if start <= first < end) for first in word_offsets}
    assert set(np.flatnonzero(first_tokens_of_words(text, words, token_spans))) == expected


def test_ideograph_ranges_are_those_of_bert():
    assert all(map(is_ideograph, "一龥㐀豈\U00020000\U0002f800"))
    assert not any(map(is_ideograph, "aあア한。，１ "))


def test_load_segmenter_imports_a_user_function(tmp_path, monkeypatch):
    (tmp_path / "pairs_of_two.py").write_text("def pairs(text):\n    return [text[i:i + 2] for i in range(0, len(text), 2)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    segment = load_segmenter("pairs_of_two:pairs")
    assert char_word_starts("天地玄黄", segment("天地玄黄")).tolist() == [True, False, True, False]
    with pytest.raises(UserError, match="did you mean pairs_of_two:pairs"):
        load_segmenter("pairs_of_two:pair")


@pytest.mark.parametrize("name", ["", "jeiba", "no_such_module_here:cut", "json:", ":cut"])
def test_load_segmenter_refuses_unknown_names(name):
    with pytest.raises(UserError, match="segmenter"):
        load_segmenter(name)


@pytest.mark.parametrize("body", ["return len(text)", "return [1, 2]", "raise OSError('no such dictionary')"])
def test_faults_of_a_user_function_are_told_in_one_line(tmp_path, monkeypatch, body):
    (tmp_path / "faulty_words.py").write_text(f"def words(text):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_words", raising=False)
    with pytest.raises(UserError, match=r"segmenter faulty_words:words fails for '一二' .* it must return the words"):
        load_segmenter("faulty_words:words")("一二")


def test_load_segmenter_without_jieba_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(UserError, match=r"pip install bertsmith\[zh\]"):
        load_segmenter("jieba")


def test_jieba_segmenter_keeps_every_character(capfd):
    pytest.importorskip("jieba")
    segment = load_segmenter("jieba")
    text = "我们在北京大学学习 NLP，\n今天天气很好。"
    words = list(segment(text))
    assert "".join(words) == text
    assert {"我们", "学习"} <= set(words)
    assert char_word_starts(text, words)[text.index("北京大学") :][:4].tolist() == [True, False, False, False]
    assert capfd.readouterr().err == ""


@given(st.lists(st.text("我们学习ab 1。", min_size=1, max_size=4), max_size=12), st.randoms(use_true_random=False))
def test_word_starts_among_ideographs_match_brute_force(words, rng):
    text = "".join(words)
    char_starts = char_word_starts(text, words)
    word_offsets = {sum(map(len, words[:index])) for index in range(len(words))}
    ideographs = {match.start() for match in IDEOGRAPH.finditer(text)}
    assert {position for position in ideographs if char_starts[position]} == word_offsets & ideographs
    boundaries = sorted({0, len(text), *rng.sample(range(len(text) + 1), len(text) // 2)})
    token_spans = list(pairwise(boundaries))
    is_continuation = np.array([rng.random() < 0.3 for _ in token_spans], bool)
    starts = char_to_token_starts(char_starts, token_spans, is_continuation)
    assert starts.shape == (len(token_spans),) and not (starts & is_continuation).any()
    expected = [
        not continues and (a not in ideographs or a in word_offsets)
        for (a, _), continues in zip(token_spans, is_continuation, strict=True)
    ]
    assert starts.tolist() == expected
