"""Chinese word segmentation: word-start flags for whole-word masking (Cui et al. 2019), and jieba as a pre-tokenizer.

For whole-word masking the tokens stay characters or subwords; the segmenter only marks which of them begin a word.
"""

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
from tokenizers import Tokenizer as TokenizerFast

from ..errors import UserError

Segmenter = Callable[[str], Iterable[str]]  # text -> words whose concatenation is the text
Flags = NDArray[np.bool_]

JIEBA = "jieba"  # the only segmenter accepted in tokenizer.json: a file must not select code to run

# The ideographs that BERT's pre-tokenizer splits off; kana and hangul are not among them.
IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf"
    "\uf900-\ufaff\U0002f800-\U0002fa1f]"
)


def load_segmenter(name: str) -> Segmenter:
    """`jieba`, or a function from text to words, given as `package.module:function`."""
    if name == "jieba":
        return _load_jieba()
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise UserError(f"segmenter = {name!r} is not valid; use jieba, none, or your own function as package.module:function")
    return _import_segmenter(module, function)


def token_word_starts(
    text: str, words: Iterable[str], offsets: Sequence[tuple[int, int]], is_continuation: Flags, space_prefixed: bool
) -> Flags:
    """(tokens,) bool: the token begins a word. `space_prefixed`: the tokenizer marks word starts (`Ġ`, `▁`), not `##`."""
    words = list(words)
    starts = char_to_token_starts(char_word_starts(text, words), offsets, is_continuation)
    return starts | first_tokens_of_words(text, words, offsets) if space_prefixed else starts


def char_word_starts(text: str, words: Iterable[str]) -> Flags:
    """(characters,) bool: a word may begin here. False only for ideographs inside a word of the segmenter.

    Other characters are left to the tokenizer, which splits English words and numbers more finely.
    """
    words = [word for word in words if word]
    if (concatenated := "".join(words)) != text:
        raise UserError(_mismatch_message(text, concatenated))
    is_start = np.ones(len(text), bool)
    is_start[[match.start() for match in IDEOGRAPH.finditer(text)]] = False
    is_start[_word_offsets(words)] = True
    return is_start


def char_to_token_starts(char_starts: Flags, offsets: Sequence[tuple[int, int]], is_continuation: Flags) -> Flags:
    """(tokens,) bool: the token begins a word, which continuations (`##`) and ideographs inside a word do not.

    `char_starts` is from `char_word_starts`; `offsets` are character spans of the tokens. A token with an empty span
    ([CLS]) begins a word.
    """
    spans = np.asarray(offsets, np.int64).reshape(-1, 2)
    span_starts = spans[:, 0]
    is_start = spans[:, 1] <= span_starts
    is_start[~is_start] = char_starts[span_starts[~is_start]]
    return is_start & ~np.asarray(is_continuation, bool)


def first_tokens_of_words(text: str, words: Iterable[str], offsets: Sequence[tuple[int, int]]) -> Flags:
    """(tokens,) bool: the first token that overlaps the beginning of a word of the segmenter.

    For tokenizers that mark tokens after a space (`Ġ`, `▁`), which Chinese does not have. Of several byte-level tokens of
    one character the first counts; the space before a word belongs to it, whether or not the offsets include it.
    """
    word_offsets = _word_offsets([word for word in words if word])
    word_offsets -= np.fromiter(
        (offset > 0 and text[offset - 1] == " " for offset in word_offsets), np.int64, len(word_offsets)
    )
    token_ends = np.maximum.accumulate(np.asarray(offsets, np.int64).reshape(-1, 2)[:, 1])
    starts = np.zeros(len(token_ends) + 1, bool)  # one more, for words after the last token
    starts[np.searchsorted(token_ends, word_offsets, side="right")] = True
    return starts[:-1]


class JiebaPreTokenizer:
    """Splits the output of BERT's pre-tokenizer into Chinese words; jieba is loaded at the first ideograph."""

    def __init__(self) -> None:
        self.segment: Segmenter | None = None

    def __call__(self, text: str) -> list[str]:
        if not IDEOGRAPH.search(text):
            return [text]
        self.segment = self.segment or load_segmenter(JIEBA)
        return list(self.segment(text))

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """Protocol of `PreTokenizer.custom`: called once per text, splits in place and keeps offsets."""
        text.split(self._split)

    def _split(self, index: int, string: NormalizedString) -> list[NormalizedString]:
        ends = list(accumulate(map(len, self(string.normalized)), initial=0))
        return [part for pair in pairwise(ends) if (part := string[slice(*pair)]) is not None]


def install_jieba(backend_tokenizer: TokenizerFast) -> bytes:
    """Add jieba after BERT's pre-tokenizer; return the tokenizer.json, which the library cannot serialize afterwards.

    Other readers of that file ignore the "segmenter" key and treat a Chinese clause as one word.
    """
    config = json.loads(backend_tokenizer.to_str())
    config["pre_tokenizer"] = {"type": "BertPreTokenizer", "segmenter": JIEBA}
    backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.PreTokenizer.custom(JiebaPreTokenizer())]
    )
    return json.dumps(config, indent=2, ensure_ascii=False).encode()


def uses_jieba(data: bytes) -> bool:
    """Whether a tokenizer.json names jieba; the substring test avoids parsing most files twice."""
    if b'"segmenter"' not in data:
        return False
    pre_tokenizer: Any = json.loads(data).get("pre_tokenizer") or {}
    return pre_tokenizer.get("segmenter") == JIEBA


def _word_offsets(words: Sequence[str]) -> NDArray[np.int64]:
    """Character offset of each word."""
    sizes = np.fromiter(map(len, words), np.int64, len(words))
    return sizes.cumsum() - sizes


def _load_jieba() -> Segmenter:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports pkg_resources, and has escapes that newer Pythons warn about
            import jieba
    except ImportError:
        raise UserError("language=zh needs jieba: pip install bertsmith[zh]") from None
    jieba.setLogLevel(logging.CRITICAL)
    jieba.initialize()  # a second or two now, not at the first text
    return jieba.lcut


def _import_segmenter(module: str, function: str) -> Segmenter:
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # user code may raise anything
        raise UserError(
            f"segmenter module {module!r} cannot be imported ({error}); is it installed, or on PYTHONPATH?"
        ) from None
    segmenter = getattr(imported, function, None)
    if callable(segmenter):
        return _check_words(segmenter, f"{module}:{function}")
    close_matches = get_close_matches(
        function, [name for name in dir(imported) if callable(getattr(imported, name))], n=1, cutoff=0.5
    )
    hint = (
        f"; did you mean {module}:{close_matches[0]}?" if close_matches else "; it must be a function from a text to its words"
    )
    raise UserError(f"{module} has no function {function!r}{hint}")


def _check_words(segmenter: Callable[[str], Any], name: str) -> Segmenter:
    """The same function, whose faults are a UserError: it raises, or returns no list of strings."""

    def segment(text: str) -> list[str]:
        try:
            words = list(segmenter(text))
        except Exception as error:  # user code may raise anything
            problem = f"{type(error).__name__}: {error}"
        else:
            if all(isinstance(word, str) for word in words):
                return words
            problem = f"it has returned {words[:3]!r}"
        raise UserError(f"segmenter {name} fails for {text[:40]!r} ({problem}); it must return the words of a text, as strings")

    return segment


def _mismatch_message(text: str, concatenated: str) -> str:
    position = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, concatenated, strict=False)))
    return (
        f"the segmenter's words do not concatenate to the text: at character {position:,} the text has "
        f"{text[position : position + 12]!r}, the words have {concatenated[position : position + 12]!r}; "
        "a segmenter must return every character, spaces included"
    )
