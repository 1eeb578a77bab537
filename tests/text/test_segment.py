"""Chinese words: where they begin, whoever segments, and what that says about tokens."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import BadInput
from bertsmith.text.segment import is_cjk, segmenter, starts_of_tokens, word_starts


def characters(text: str) -> list[tuple[int, int]]:
    return [(at, at + 1) for at in range(len(text))]


def test_a_word_begins_where_the_segmenter_says():
    assert word_starts("我们学习语言", ["我们", "学习", "语言"]).tolist() == [True, False] * 3


def test_outside_ideographs_the_tokenizer_decides():
    begins = word_starts("重3.14吨级", ["重", "3.14", "吨级"])
    assert begins.tolist() == [True, True, True, True, True, True, False]


def test_no_text_has_no_words():
    assert word_starts("", []).shape == (0,)
    assert starts_of_tokens(word_starts("", []), [], np.zeros(0, bool)).shape == (0,)


@pytest.mark.parametrize(
    ("words", "place"), [(["我们", "学", "语言"], 3), (["我们"], 2), (["我们学习语言", "吗"], 6), (["你们"], 0)]
)
def test_words_that_do_not_add_up_are_refused_at_the_place_where_they_part(words, place):
    with pytest.raises(BadInput, match=f"at character {place} "):
        word_starts("我们学习语言", words)


def test_tokens_begin_words_unless_they_continue_or_lie_inside_a_chinese_word():
    text = "我们用tokenizers"
    begins = word_starts(text, ["我们", "用", "tokenizers"])
    offsets = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 8), (8, 13), (0, 0)]  # [CLS] 我 们 用 token ##izers [SEP]
    continues = np.array([False, False, False, False, False, True, False])
    assert starts_of_tokens(begins, offsets, continues).tolist() == [True, True, False, True, True, False, True]


def test_an_empty_token_behind_the_text_is_no_error():
    assert starts_of_tokens(word_starts("好", ["好"]), [(0, 1), (1, 1)], np.zeros(2, bool)).tolist() == [True, True]


def test_ideographs_are_those_of_bert():
    assert all(map(is_cjk, "一龥㐀豈\U00020000\U0002f800"))
    assert not any(map(is_cjk, "aあア한。，１ "))


def test_a_function_of_ones_own_is_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "pairs_of_two.py").write_text("def pairs(text):\n    return [text[i:i + 2] for i in range(0, len(text), 2)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    pairs = segmenter("pairs_of_two:pairs")
    assert word_starts("天地玄黄", pairs("天地玄黄")).tolist() == [True, False, True, False]
    with pytest.raises(BadInput, match="did you mean pairs_of_two:pairs"):
        segmenter("pairs_of_two:pair")


@pytest.mark.parametrize("name", ["", "jeiba", "no_such_module_here:cut", "json:", ":cut"])
def test_what_is_no_segmenter_is_refused(name):
    with pytest.raises(BadInput, match="segmenter"):
        segmenter(name)


def test_a_missing_jieba_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(BadInput, match=r"pip install bertsmith\[zh\]"):
        segmenter("jieba")


def test_jieba_finds_words_and_keeps_every_character(capfd):
    pytest.importorskip("jieba")
    cut = segmenter("jieba")
    text = "我们在北京大学学习 NLP，\n今天天气很好。"
    words = list(cut(text))
    assert "".join(words) == text
    assert {"我们", "学习"} <= set(words)
    assert word_starts(text, words)[text.index("北京大学") :][:4].tolist() == [True, False, False, False]
    assert capfd.readouterr().err == ""


@given(st.lists(st.text("我们学习ab 1。", min_size=1, max_size=4), max_size=12), st.randoms(use_true_random=False))
def test_begins_are_exactly_the_starts_of_words_among_ideographs(words, chance):
    text = "".join(words)
    begins = word_starts(text, words)
    firsts = {sum(map(len, words[:number])) for number in range(len(words))}
    assert {at for at in range(len(text)) if begins[at] and is_cjk(text[at])} == {at for at in firsts if is_cjk(text[at])}
    borders = sorted({0, len(text), *chance.sample(range(len(text) + 1), len(text) // 2)})
    tokens = list(pairwise(borders))
    continues = np.array([chance.random() < 0.3 for _ in tokens], bool)
    starts = starts_of_tokens(begins, tokens, continues)
    assert starts.shape == (len(tokens),) and not (starts & continues).any()
    expected = [not no and (not is_cjk(text[a]) or a in firsts) for (a, _), no in zip(tokens, continues, strict=True)]
    assert starts.tolist() == expected
