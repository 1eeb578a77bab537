"""Text cut into sentences, for English and Chinese at once, by rules that run over megabytes in one go.

Each end mark has a pattern of its own that begins with that one character: the engine finds a literal several times
faster than a class of characters, and only a period, the one mark that may mean something else, asks Python.
"""

import re
from collections.abc import Callable

from .tokenizer import Tokenizer

Ends = Callable[[str, int, re.Match[str]], bool]  # of the text, the start of the sentence and a possible border

_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f"
_LOWER = "".join(c for c in map(chr, [*range(0x80, 0x590), *range(0x1E00, 0x2000)]) if c.islower())
_OPENERS, _CLOSERS = r"""["'“‘«(\[{¿¡「『（【《]*+""", r"""["'”’»)\]}」』）】》〉]*+"""
_CONTINUES = r"""\s，、：；。！？…—～·,.;:!?)\]}”’」』）】》〉"""  # a sentence never begins with these
_GAP = r"[^\S\n]"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TITLES = _words(
    "Mr Mrs Ms Messrs Mme Mlle Dr Prof Rev Fr Hon Gen Col Lt Sgt Capt Maj Cmdr Adm Sen Rep Gov Pres Supt Mt Ft Vol Vols "
    "Fig Figs Eq Eqs pp vs cf e.g i.e E.g I.e viz approx Approx ca"
)
_NUMBERED = _words("No Nos no nos Nr nr Art art Sec sec Ch ch fig figs eq vol est Est Op op Ex ex")
_ALSO_LAST = _words(
    "etc al Inc Ltd Co Corp Bros Jr Sr St Ave Blvd Rd Dept dept Univ Assoc Ph.D Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov "
    "Dec Calif Mass Conn Fla Ala Ariz Mich Minn Tenn Tex Va Pa Ga Ky Wis Wash Okla Neb Nev ft lb lbs oz hr hrs lit"
)
_TAILS = frozenset(word[-3:] for word in _TITLES | _NUMBERED | _ALSO_LAST)  # three other letters: no abbreviation

_DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # U.S, a.m, J.R.R
_STARTER = re.compile(
    rf"{_OPENERS}(?:(?:The|This|That|These|Those|There|Then|They|Their|He|His|She|Her|It|Its|We|Our|You|Your|I|My|A|An|And|But|"
    r"So|Or|Yet|If|In|On|At|As|By|For|From|With|To|After|Before|When|While|Where|Who|What|Why|How|Once|Since|Until|Although|"
    rf"Though|Because|However|Thus|Here|Now|Not|No|Some|Many|Most|All|Both|Each|Another|Such|Also)(?![\w-])|[{_CJK}])"
)


def cut(text: str) -> str:
    """The same text with a newline for the white space at every sentence border; what is cut already stays as it is."""
    for mark, border, ends in _BORDERS:
        if mark in text:
            text = _cut(text, border, ends)
    return text


def sentences(line: str) -> list[str]:
    """The sentences of a line, or of several."""
    return [sentence for sentence in cut(line).split("\n") if sentence and not sentence.isspace()]


def _cut(text: str, border: re.Pattern[str], ends: Ends | None = None) -> str:
    parts, last = [], 0
    for found in border.finditer(text):
        if ends is None or ends(text, last, found):
            parts.append(text[last : found.end()].rstrip())
            last = found.end()
    return "\n".join([*parts, text[last:]]) if parts else text


def _english(mark: str) -> re.Pattern[str]:
    """From the end mark to the start of the next sentence; `?` and `!` need no space between Chinese characters."""
    first = rf"\{mark}(?<![.!?…。！？；]{{2}})"  # of a run of marks, so that a megabyte of them is read once
    spaced = rf"[.!?…]*+{_CLOSERS}{_GAP}++(?={_OPENERS}[^\W_a-z{_LOWER}])"
    return re.compile(f"{first}{spaced}" if mark == "." else rf"{first}(?:{spaced}|(?<=[{_CJK}]\{mark})[!?]*+(?=[{_CJK}]))")


def _chinese(mark: str) -> re.Pattern[str]:
    first = rf"{mark}(?<![。！？；…]{{2}})"
    closed = r"[.!?。！？；…]*+[”’」』）】》〉)\]}]*+"
    return re.compile(rf"""{first}{closed}(?:(?=[^{_CONTINUES}"'])|["']*+{_GAP}++(?=[^{_CONTINUES}]))""")


def _dots_end(text: str, last: int, found: re.Match[str]) -> bool:
    return not text[found.end()].islower()


def _period_ends(text: str, last: int, found: re.Match[str]) -> bool:
    """A period also shortens words; what stands before it decides, and for some words what stands behind."""
    dot = found.start()
    tail = text[max(dot - 3, 0) : dot]
    if tail not in _TAILS and tail.isalpha() and len(tail) == 3:
        return True
    if text[dot + 1] in ".!?…":
        return True
    line = text[max(last, dot - 20) : dot].rpartition("\n")[2]
    return _word_ends(line.rstrip(), text, found.end())


def _word_ends(before: str, text: str, after: int) -> bool:
    word = before.rsplit(None, 1)[-1].lstrip("\"'“‘«([{").rpartition("-")[2] if before else ""
    if word.isdigit():
        return len(word) > 3 or bool(before[: -len(word)].strip(" \t([-"))  # `1. Wash the rice` is one sentence
    if len(word) == 1 and word.lower() != word.upper():
        return word == "I" and _STARTER.match(text, after) is not None
    if word in _NUMBERED:
        return not text[after].isdigit()
    if word in _TITLES:
        return False
    if word in _ALSO_LAST or _DOTTED.fullmatch(word):
        return _STARTER.match(text, after) is not None
    return True


_BORDERS: list[tuple[str, re.Pattern[str], Ends | None]] = [
    *((mark, _chinese(mark), None) for mark in "。！？；"),
    ("…", _chinese("…"), _dots_end),
    *((mark, _english(mark), None) for mark in "!?"),
    (".", _english("."), _period_ends),  # last: an enumeration is known by its place at the start of a line
]


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
