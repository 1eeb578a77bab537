"""The space between two sentences, where pieces begin with the space before their word: a sentence alone has none.

Without it a model that writes would learn that nothing stands between sentences.
"""

import re

from .tokenizer import Tokenizer

# Chinese, Japanese, and their marks
_UNSPACED = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0002fa1f"
_JOINT = re.compile(rf"(?<=[^\s{_UNSPACED}])\n(?=[^\s{_UNSPACED}])")
_SPACED = re.compile(rf"[^\s{_UNSPACED}]")


def wanted(tokenizer: Tokenizer) -> bool:
    """Its pieces begin with the space before their word, and it puts none before a text by itself."""
    return tokenizer.marks_starts == "Ġ" and tokenizer.joins_spaces and not tokenizer.encode("a").tokens[0].startswith("Ġ")


def spaced(lines: str, before: str = "") -> str:
    """Lines of documents, an empty one between two: each that goes on with a document begins with a space, unless a script on
    either side has none. `before` is the character that the first line goes on from, if it does."""
    return (" " if _apart(before, lines) else "") + _JOINT.sub("\n ", lines)


def joints(lines: str, before: str = "") -> int:
    """How many spaces stand for ends of lines."""
    return _apart(before, lines) + len(_JOINT.findall(lines))


def _apart(before: str, lines: str) -> bool:
    return bool(_SPACED.match(before) and _SPACED.match(lines))
