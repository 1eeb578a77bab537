"""Words of Chinese, which no space parts: a segmenter says where they begin, and the tokens stay as they are."""

import importlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from itertools import accumulate, pairwise, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import NormalizedString, PreTokenizedString, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ..errors import UserError

Segmenter = Callable[[str], Iterable[str]]  # text -> words that add up to the text
Flags = NDArray[np.bool_]

# The ideographs that BERT's tokenizers set apart; kana and hangul are not among them.
IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


def load_segmenter(name: str) -> Segmenter:
    """`jieba`, or any function of text to words, named as `package.module:function`."""
    if name == "jieba":
        return _load_jieba()
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise UserError(f"segmenter {name!r} is not known; write jieba, or a function of your own as package.module:function")
    return _import_segmenter(module, function)


def token_word_starts(
    text: str, words: Iterable[str], offsets: Sequence[tuple[int, int]], is_continuation: Flags, space_prefixed: bool
) -> Flags:
    """For each token of a text, whether it begins a word; `spaced` if its tokenizer marks that by the space before a word."""
    words = list(words)
    starts = char_to_token_starts(char_word_starts(text, words), offsets, is_continuation)
    return starts | first_tokens_of_words(text, words, offsets) if space_prefixed else starts


def char_word_starts(text: str, words: Iterable[str]) -> Flags:
    """For each character, whether a word may begin at it: False only at ideographs inside a word of the segmenter.

    At any other character that is left to the tokenizer, whose idea of a word in English or in numbers is finer.
    """
    words = [word for word in words if word]
    if (joined := "".join(words)) != text:
        raise UserError(_mismatch_message(text, joined))
    begins = np.ones(len(text), bool)
    begins[[found.start() for found in IDEOGRAPH.finditer(text)]] = False
    begins[_word_offsets(words)] = True
    return begins


def char_to_token_starts(char_starts: Flags, offsets: Sequence[tuple[int, int]], is_continuation: Flags) -> Flags:
    """For each token, whether it begins a word: no continuation (`##`) does, and no ideograph inside a word.

    `begins` is from `word_starts`; `offsets` are in characters of that text. A token without characters ([CLS]) stands alone.
    """
    spans = np.asarray(offsets, np.int64).reshape(-1, 2)
    first = spans[:, 0]
    allowed = spans[:, 1] <= first
    allowed[~allowed] = char_starts[first[~allowed]]
    return allowed & ~np.asarray(is_continuation, bool)


def first_tokens_of_words(text: str, words: Iterable[str], offsets: Sequence[tuple[int, int]]) -> Flags:
    """For each token, whether a word of the segmenter begins in it, and in no token before it.

    It is for tokenizers that mark the pieces behind a space (`Ġ`, `▁`), of which Chinese has none. A character may be several
    tokens, of which the first counts; the space before a word belongs to it, whether or not the offsets have it.
    """
    firsts = _word_offsets([word for word in words if word])
    firsts -= np.fromiter((at > 0 and text[at - 1] == " " for at in firsts), np.int64, len(firsts))
    ends = np.maximum.accumulate(np.asarray(offsets, np.int64).reshape(-1, 2)[:, 1])
    starts = np.zeros(len(ends) + 1, bool)  # what lies behind the last token begins none
    starts[np.searchsorted(ends, firsts, side="right")] = True
    return starts[:-1]


def _word_offsets(words: Sequence[str]) -> NDArray[np.int64]:
    """The place of each word's first character."""
    sizes = np.fromiter(map(len, words), np.int64, len(words))
    return sizes.cumsum() - sizes


def _load_jieba() -> Segmenter:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports pkg_resources, and has escapes that newer Pythons warn about
            import jieba
    except ImportError:
        raise UserError("segmenter 'jieba' is not installed: pip install bertsmith[zh]") from None
    jieba.setLogLevel(logging.CRITICAL)
    jieba.initialize()  # a second or two now, not at the first text
    return jieba.lcut


def _import_segmenter(module: str, function: str) -> Segmenter:
    try:
        home = importlib.import_module(module)
    except Exception as error:  # a module of the user's may fail in any way
        raise UserError(
            f"segmenter module {module!r} cannot be imported ({error}); is it installed, or on PYTHONPATH?"
        ) from None
    found = getattr(home, function, None)
    if callable(found):
        return found
    near = get_close_matches(function, [name for name in dir(home) if callable(getattr(home, name))], n=1, cutoff=0.5)
    guess = f"; did you mean {module}:{near[0]}?" if near else "; name a function that takes text and gives words"
    raise UserError(f"{module} has no function {function!r}{guess}")


def _mismatch_message(text: str, joined: str) -> str:
    place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, joined, strict=False)))
    return (
        f"the segmenter's words do not add up to the text: at character {place:,} the text goes on with "
        f"{text[place : place + 12]!r}, the words with {joined[place : place + 12]!r}; a segmenter must keep every character"
    )


JIEBA = "jieba"  # the one segmenter a tokenizer.json may name: a file must not choose what code is run


class JiebaPreTokenizer:
    """What BERT's splitting left whole, as words; jieba is loaded when the first ideograph comes."""

    def __init__(self) -> None:
        self.segment: Segmenter | None = None

    def __call__(self, text: str) -> list[str]:
        if not IDEOGRAPH.search(text):
            return [text]
        self.segment = self.segment or load_segmenter(JIEBA)
        return list(self.segment(text))

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """The library's protocol: called once a text, it cuts the pieces in place and keeps their offsets."""
        text.split(self._split)

    def _split(self, index: int, string: NormalizedString) -> list[NormalizedString]:
        ends = list(accumulate(map(len, self(string.normalized)), initial=0))
        return [part for pair in pairwise(ends) if (part := string[slice(*pair)]) is not None]


def install_jieba(backend_tokenizer: Rust) -> bytes:
    """Puts jieba behind BERT's splitting; returns the tokenizer.json, which the library cannot write once that is done.

    Other readers of that file see a tokenizer of whole words which takes a Chinese clause for one.
    """
    state = json.loads(backend_tokenizer.to_str())
    state["pre_tokenizer"] = {"type": "BertPreTokenizer", "segmenter": JIEBA}
    backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.PreTokenizer.custom(JiebaPreTokenizer())]
    )
    return json.dumps(state, indent=2, ensure_ascii=False).encode()


def uses_jieba(data: bytes) -> bool:
    """Whether a tokenizer.json names the segmenter; almost none does, and those are not parsed twice."""
    if b'"segmenter"' not in data:
        return False
    splitter: Any = json.loads(data).get("pre_tokenizer") or {}
    return splitter.get("segmenter") == JIEBA
