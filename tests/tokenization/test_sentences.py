"""Sentence borders in English and Chinese."""

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


def table(text: str) -> list[list[str]]:
    return [line.split("|") for line in text.strip().splitlines()]


@pytest.mark.parametrize("wanted", table(ENGLISH), ids=" ".join)
def test_english(wanted):
    assert split_sentences(" ".join(wanted)) == wanted


@pytest.mark.parametrize("wanted", table(CHINESE), ids="".join)
def test_chinese(wanted):
    assert split_sentences("".join(wanted)) == [sentence.strip() for sentence in wanted]


def test_a_chinese_sentence_may_begin_after_an_english_period():
    assert split_sentences("他说OK. 然后走了。") == ["他说OK.", "然后走了。"]


def test_an_enumeration_stays_with_its_sentence():
    assert (
        insert_sentence_breaks("1. Wash the rice. 2. Boil it.\n (3) Eat.\n12. Sleep.")
        == "1. Wash the rice.\n2. Boil it.\n (3) Eat.\n12. Sleep."
    )


def test_lines_and_empty_lines_between_documents_stay():
    text = "One. Two.\n\n  Three.  Four. \nfive."
    assert insert_sentence_breaks(text) == "One.\nTwo.\n\n  Three.\nFour. \nfive."


def test_what_has_one_sentence_a_line_is_unchanged():
    text = "The cat sat.\nMr. Smith came!\n\n他来了。\n“走吧！”\n3.14 is pi."
    assert insert_sentence_breaks(text) == text


def test_a_megabyte_of_marks_or_spaces_is_read_in_linear_time():
    for unit in (".", "?!", "。", "…", ". ", '."', "。”", "' ", "Mr. ", "1. "):
        text = unit * (500_000 // len(unit))
        assert "".join(insert_sentence_breaks(text).split()) == "".join(text.split())


words = st.sampled_from(
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
texts = st.lists(words, max_size=40).map("".join) | st.text(max_size=40)


@given(texts)
def test_only_white_space_changes(text):
    assert "".join(insert_sentence_breaks(text).split()) == "".join(text.split())
    assert insert_sentence_breaks(text).count("\n") >= text.count("\n")


@given(texts)
def test_what_is_cut_stays_as_it_is(text):
    once = insert_sentence_breaks(text)
    assert insert_sentence_breaks(once) == once


@given(texts, texts)
def test_lines_are_cut_each_alone(first, second):
    assert insert_sentence_breaks(first + "\n" + second) == insert_sentence_breaks(first) + "\n" + insert_sentence_breaks(
        second
    )


@given(texts)
def test_sentences_are_the_lines_that_hold_something(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    assert all(sentence.strip() and "\n" not in sentence for sentence in split_sentences(text))
