"""Sentence splitting in English and Chinese."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tokenization.sentences import insert_sentence_breaks, split_sentences

ENGLISH = """
The cat sat.|It slept.
He said "Stop!"|Then he left.
He said "Stop!" and left.
“Is it you?”|‘It is.’|She smiled.
(He left.)|She stayed.
Mr. Smith met Mrs. Jones and Dr. No.|They talked.
Prof. A. Einstein spoke in St. Louis.|Nobody slept.
J. R. R. Tolkien wrote it.|He was English.
J.R.R. Tolkien wrote it.
So do I.|The end.
Pi is 3.14 or so.|Yes.
Version 2.0 came.|Visit example.com.|The site is up.
He lives in the U.S.|The weather is fine.
The U.S. Army came.|It won.
It starts at 5 p.m. Monday.|He left at 6 a.m.|The door was open.
She works at Apple Inc. in Cupertino.
He sold Apple Inc.|The price was high.
We had apples, pears, etc.|In the end we slept.
The results of Smith et al. Table 3 shows.
Cats, e.g. Persians, i.e. Cats of Persia, vs. Dogs.
See Fig. 3 and Eq. 4 in Vol. II, pp. 5 to 7.|Good.
No. 5 is alive.|He said no.|Then he left.
On Jan. 5 it rained.|It was in Jan.|The sun was gone.
Martin Luther King Jr. Day is in January.
There were approx. 300 of them.|Lt.-Col. Smith counted.
He was born in 1990.|15 years later he was 15.|At 90 he died.
Well...|I think so.
Well... maybe.|What?!|No!!!|Yes.
“Wait… what?” he said.
He came to 中国.|然后 he left.
Été was warm.|Élan came.|Ça va?|Été. été.
The cat sat .|The dog ran .
a. b. c
"""
CHINESE = """
他来了。|你呢？|我很好！！|真的？！|是的
他说：“走吧！”|她没有走。
“好……”|她想。|「是嗎？」|他問。
他来了；|我走了。
他没有……|后来他走了。
他没有……，后来他走了。
“你来了！”，他说。
（完。）|再见。|【注。】|他说
你好吗?|我很好!|谢谢
价格是3.5元。|他买了 iPhone。|然后走了
"你好。"他说。
他走了。|　她来了。
我看了《你好》。|《再见》也看了。
"""


def parse_cases(text: str) -> list[list[str]]:
    return [line.split("|") for line in text.strip().splitlines()]


@pytest.mark.parametrize("sentences", parse_cases(ENGLISH), ids=" ".join)
def test_split_english_sentences(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize("sentences", parse_cases(CHINESE), ids="".join)
def test_split_chinese_sentences(sentences):
    assert split_sentences("".join(sentences)) == [sentence.strip() for sentence in sentences]


def test_split_chinese_sentence_after_english_period():
    assert split_sentences("他说OK. 然后走了。") == ["他说OK.", "然后走了。"]


def test_sentence_breaks_keep_list_numbers():
    assert (
        insert_sentence_breaks("1. Wash the rice. 2. Boil it.\n (3) Eat.\n12. Sleep.")
        == "1. Wash the rice.\n2. Boil it.\n (3) Eat.\n12. Sleep."
    )


def test_sentence_breaks_keep_lines_and_empty_lines():
    text = "One. Two.\n\n  Three.  Four. \nfive."
    assert insert_sentence_breaks(text) == "One.\nTwo.\n\n  Three.\nFour. \nfive."


def test_sentence_breaks_keep_one_sentence_per_line():
    text = "The cat sat.\nMr. Smith came!\n\n他来了。\n“走吧！”\n3.14 is pi."
    assert insert_sentence_breaks(text) == text


def test_sentence_breaks_take_linear_time():
    for unit in (".", "?!", "。", "…", ". ", '."', "。”", "' ", "Mr. ", "1. "):
        text = unit * (500_000 // len(unit))
        assert "".join(insert_sentence_breaks(text).split()) == "".join(text.split())


fragments = st.sampled_from(
    [
        *"aAIé É1中文 .!?。！？；…，“”\"'()（）「」-\n\t",
        "\u3000",
        "\xa0",
        ". ",
        "! ",
        "Mr",
        "U.S",
        "etc",
        "No",
        "The",
        "12",
        "...",
        "Lt",
        "word",
        "Word",
    ]
)
texts = st.lists(fragments, max_size=40).map("".join) | st.text(max_size=40)


@given(texts)
def test_sentence_breaks_change_only_white_space(text):
    assert "".join(insert_sentence_breaks(text).split()) == "".join(text.split())
    assert insert_sentence_breaks(text).count("\n") >= text.count("\n")


@given(texts)
def test_sentence_breaks_are_idempotent(text):
    once = insert_sentence_breaks(text)
    assert insert_sentence_breaks(once) == once


@given(texts, texts)
def test_sentence_breaks_treat_lines_independently(first, second):
    assert insert_sentence_breaks(first + "\n" + second) == insert_sentence_breaks(first) + "\n" + insert_sentence_breaks(
        second
    )


@given(texts)
def test_split_sentences_are_not_empty(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    assert all(sentence.strip() and "\n" not in sentence for sentence in split_sentences(text))
