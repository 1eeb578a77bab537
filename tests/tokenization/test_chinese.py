"""Chinese words: where they begin, whoever segments, and what that says about tokens."""

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


def test_a_word_begins_where_the_segmenter_says():
    assert char_word_starts("我们学习语言", ["我们", "学习", "语言"]).tolist() == [True, False] * 3


def test_outside_ideographs_the_tokenizer_decides():
    begins = char_word_starts("重3.14吨级", ["重", "3.14", "吨级"])
    assert begins.tolist() == [True, True, True, True, True, True, False]


def test_no_text_has_no_words():
    assert char_word_starts("", []).shape == (0,)
    assert char_to_token_starts(char_word_starts("", []), [], np.zeros(0, bool)).shape == (0,)


@pytest.mark.parametrize(
    ("words", "place"), [(["我们", "学", "语言"], 3), (["我们"], 2), (["我们学习语言", "吗"], 6), (["你们"], 0)]
)
def test_words_that_do_not_add_up_are_refused_at_the_place_where_they_part(words, place):
    with pytest.raises(UserError, match=f"at character {place} "):
        char_word_starts("我们学习语言", words)


def test_tokens_begin_words_unless_they_continue_or_lie_inside_a_chinese_word():
    text = "我们用tokenizers"
    begins = char_word_starts(text, ["我们", "用", "tokenizers"])
    offsets = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 8), (8, 13), (0, 0)]  # [CLS] 我 们 用 token ##izers [SEP]
    continues = np.array([False, False, False, False, False, True, False])
    assert char_to_token_starts(begins, offsets, continues).tolist() == [True, True, False, True, True, False, True]


def test_an_empty_token_behind_the_text_is_no_error():
    assert char_to_token_starts(char_word_starts("好", ["好"]), [(0, 1), (1, 1)], np.zeros(2, bool)).tolist() == [True, True]


def test_a_character_of_many_tokens_begins_one_word_and_a_space_belongs_to_the_word_behind_it():
    text, words = "我们 the天", ["我们", " ", "the", "天"]
    bytes_of = [(0, 1)] * 3 + [(1, 2)] * 3 + [(2, 3), (3, 4), (4, 5), (5, 6)] + [(6, 7)] * 3
    want = [True, *[False] * 5, True, False, False, False, True, False, False]
    assert first_tokens_of_words(text, words, bytes_of).tolist() == want
    trimmed = [(0, 1), (0, 1), (1, 2), (3, 6), (6, 7)]  # without the space
    assert first_tokens_of_words(text, words, trimmed).tolist() == [True, False, False, True, True]
    across = [(0, 2), (1, 4), (4, 7)]  # tokens of some bytes of a character, and more of the next word
    assert first_tokens_of_words(text, words, across).tolist() == [True, True, True]
    assert first_tokens_of_words("", [], []).shape == (0,)


def test_marks_of_spaces_are_kept_beside_the_words_of_the_segmenter():
    text, offsets = "我们 a.b", [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]
    continues = np.array([True, True, False, True, True])  # only " a" has its mark
    assert token_word_starts(text, ["我们", " ", "a.b"], offsets, continues, True).tolist() == [True, False, True, False, False]
    assert token_word_starts(text, iter(["我们", " ", "a", ".b"]), offsets, continues, True).tolist() == [
        True,
        False,
        True,
        True,
        False,
    ]


@given(st.lists(st.text("我们ab。", min_size=1, max_size=4), max_size=12), st.randoms(use_true_random=False))
def test_the_first_token_of_a_word_is_the_first_that_reaches_its_first_character(words, chance):
    text = "".join(words)
    borders = sorted({0, len(text), *chance.sample(range(len(text) + 1), len(text) // 2)})
    tokens = [pair for pair in pairwise(borders) for _ in range(chance.randint(1, 3))]  # some are bytes of the same
    firsts = [sum(map(len, words[:number])) for number in range(len(words))]
    want = {min(number for number, (a, b) in enumerate(tokens) if a <= first < b) for first in firsts}
    assert set(np.flatnonzero(first_tokens_of_words(text, words, tokens))) == want


def test_ideographs_are_those_of_bert():
    assert all(map(is_ideograph, "一龥㐀豈\U00020000\U0002f800"))
    assert not any(map(is_ideograph, "aあア한。，１ "))


def test_a_function_of_ones_own_is_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "pairs_of_two.py").write_text("def pairs(text):\n    return [text[i:i + 2] for i in range(0, len(text), 2)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    pairs = load_segmenter("pairs_of_two:pairs")
    assert char_word_starts("天地玄黄", pairs("天地玄黄")).tolist() == [True, False, True, False]
    with pytest.raises(UserError, match="did you mean pairs_of_two:pairs"):
        load_segmenter("pairs_of_two:pair")


@pytest.mark.parametrize("name", ["", "jeiba", "no_such_module_here:cut", "json:", ":cut"])
def test_what_is_no_segmenter_is_refused(name):
    with pytest.raises(UserError, match="segmenter"):
        load_segmenter(name)


def test_a_missing_jieba_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(UserError, match=r"pip install bertsmith\[zh\]"):
        load_segmenter("jieba")


def test_jieba_finds_words_and_keeps_every_character(capfd):
    pytest.importorskip("jieba")
    cut = load_segmenter("jieba")
    text = "我们在北京大学学习 NLP，\n今天天气很好。"
    words = list(cut(text))
    assert "".join(words) == text
    assert {"我们", "学习"} <= set(words)
    assert char_word_starts(text, words)[text.index("北京大学") :][:4].tolist() == [True, False, False, False]
    assert capfd.readouterr().err == ""


@given(st.lists(st.text("我们学习ab 1。", min_size=1, max_size=4), max_size=12), st.randoms(use_true_random=False))
def test_begins_are_exactly_the_starts_of_words_among_ideographs(words, chance):
    text = "".join(words)
    begins = char_word_starts(text, words)
    firsts = {sum(map(len, words[:number])) for number in range(len(words))}
    chinese = {found.start() for found in IDEOGRAPH.finditer(text)}
    assert {at for at in chinese if begins[at]} == firsts & chinese
    borders = sorted({0, len(text), *chance.sample(range(len(text) + 1), len(text) // 2)})
    tokens = list(pairwise(borders))
    continues = np.array([chance.random() < 0.3 for _ in tokens], bool)
    starts = char_to_token_starts(begins, tokens, continues)
    assert starts.shape == (len(tokens),) and not (starts & continues).any()
    expected = [not no and (a not in chinese or a in firsts) for (a, _), no in zip(tokens, continues, strict=True)]
    assert starts.tolist() == expected
