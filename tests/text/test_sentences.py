"""Sentence borders in English and Chinese."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.text.sentences import cut, sentences

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
他说OK. 然后走了。
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
    assert sentences(" ".join(wanted)) == wanted


@pytest.mark.parametrize("wanted", table(CHINESE), ids="".join)
def test_chinese(wanted):
    assert sentences("".join(wanted)) == [sentence.strip() for sentence in wanted]


def test_a_chinese_sentence_may_begin_after_an_english_period():
    assert sentences("他说OK. 然后走了。") == ["他说OK.", "然后走了。"]
