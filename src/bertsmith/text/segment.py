"""Words of Chinese, which no space parts: a segmenter says where they begin, and the tokens stay as they are."""

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput

Segmenter = Callable[[str], Iterable[str]]  # text -> words that add up to the text
Flags = NDArray[np.bool_]

# The ideographs that BERT's tokenizers set apart; kana and hangul are not among them.
IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


def is_cjk(char: str) -> bool:
    return IDEOGRAPH.fullmatch(char) is not None


def segmenter(name: str) -> Segmenter:
    """`jieba`, or any function of text to words, named as `package.module:function`."""
    if name == "jieba":
        return _jieba()
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise BadInput(f"segmenter {name!r} is not known; write jieba, or a function of your own as package.module:function")
    return _imported(module, function)


def word_starts(text: str, words: Iterable[str]) -> Flags:
    """For each character, whether a word may begin at it: False only at ideographs inside a word of the segmenter.

    At any other character that is left to the tokenizer, whose idea of a word in English or in numbers is finer.
    """
    words = [word for word in words if word]
    if (joined := "".join(words)) != text:
        raise BadInput(_parted(text, joined))
    begins = np.ones(len(text), bool)
    begins[[found.start() for found in IDEOGRAPH.finditer(text)]] = False
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    begins[ends[:-1]] = True
    begins[:1] = True
    return begins


def starts_of_tokens(begins: Flags, offsets: Sequence[tuple[int, int]], continues: Flags) -> Flags:
    """For each token, whether it begins a word: no continuation (`##`) does, and no ideograph inside a word.

    `begins` is from `word_starts`; `offsets` are in characters of that text. A token without characters ([CLS]) stands alone.
    """
    spans = np.asarray(offsets, np.int64).reshape(-1, 2)
    first = spans[:, 0]
    allowed = spans[:, 1] <= first
    allowed[~allowed] = begins[first[~allowed]]
    return allowed & ~np.asarray(continues, bool)


def _jieba() -> Segmenter:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports pkg_resources, and has escapes that newer Pythons warn about
            import jieba
    except ImportError:
        raise BadInput("segmenter 'jieba' is not installed: pip install bertsmith[zh]") from None
    jieba.setLogLevel(logging.CRITICAL)
    jieba.initialize()  # a second or two now, not at the first text
    return jieba.lcut


def _imported(module: str, function: str) -> Segmenter:
    try:
        home = importlib.import_module(module)
    except Exception as error:  # a module of the user's may fail in any way
        raise BadInput(
            f"segmenter module {module!r} cannot be imported ({error}); is it installed, or on PYTHONPATH?"
        ) from None
    found = getattr(home, function, None)
    if callable(found):
        return found
    near = get_close_matches(function, [name for name in dir(home) if callable(getattr(home, name))], n=1, cutoff=0.5)
    guess = f"; did you mean {module}:{near[0]}?" if near else "; name a function that takes text and gives words"
    raise BadInput(f"{module} has no function {function!r}{guess}")


def _parted(text: str, joined: str) -> str:
    place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, joined, strict=False)))
    return (
        f"the segmenter's words do not add up to the text: at character {place:,} the text goes on with "
        f"{text[place : place + 12]!r}, the words with {joined[place : place + 12]!r}; a segmenter must keep every character"
    )
