"""Text cut into sentences, for English and Chinese at once, by rules that run over megabytes in one go.

Each end mark has a pattern of its own that begins with that one character: the engine finds a literal several times
faster than a class of characters, and only a period, the one mark that may mean something else, asks Python.
"""

import re
from collections.abc import Callable

from .tokenizer import Tokenizer

IsBoundary = Callable[[str, int, re.Match[str]], bool]  # of the text, the start of the sentence and a possible border

_CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f"
_LOWER = "".join(c for c in map(chr, [*range(0x80, 0x590), *range(0x1E00, 0x2000)]) if c.islower())
_OPENERS, _CLOSERS = r"""["'“‘«(\[{¿¡「『（【《]*+""", r"""["'”’»)\]}」』）】》〉]*+"""
_NEVER_FIRST = r"""\s，、：；。！？…—～·,.;:!?)\]}”’」』）】》〉"""  # a sentence never begins with these
_SPACE = r"[^\S\n]"


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_FINAL = _word_set(
    "Mr Mrs Ms Messrs Mme Mlle Dr Prof Rev Fr Hon Gen Col Lt Sgt Capt Maj Cmdr Adm Sen Rep Gov Pres Supt Mt Ft Vol Vols "
    "Fig Figs Eq Eqs pp vs cf e.g i.e E.g I.e viz approx Approx ca"
)
_BEFORE_NUMBER = _word_set("No Nos no nos Nr nr Art art Sec sec Ch ch fig figs eq vol est Est Op op Ex ex")
_SOMETIMES_FINAL = _word_set(
    "etc al Inc Ltd Co Corp Bros Jr Sr St Ave Blvd Rd Dept dept Univ Assoc Ph.D Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov "
    "Dec Calif Mass Conn Fla Ala Ariz Mich Minn Tenn Tex Va Pa Ga Ky Wis Wash Okla Neb Nev ft lb lbs oz hr hrs lit"
)
_ABBREVIATION_TAILS = frozenset(
    word[-3:] for word in _NEVER_FINAL | _BEFORE_NUMBER | _SOMETIMES_FINAL
)  # three other letters: no abbreviation

_DOTTED_ABBREVIATION = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # U.S, a.m, J.R.R
_SENTENCE_STARTER = re.compile(
    rf"{_OPENERS}(?:(?:The|This|That|These|Those|There|Then|They|Their|He|His|She|Her|It|Its|We|Our|You|Your|I|My|A|An|And|But|"
    r"So|Or|Yet|If|In|On|At|As|By|For|From|With|To|After|Before|When|While|Where|Who|What|Why|How|Once|Since|Until|Although|"
    rf"Though|Because|However|Thus|Here|Now|Not|No|Some|Many|Most|All|Both|Each|Another|Such|Also)(?![\w-])|[{_CJK}])"
)


def insert_sentence_breaks(text: str) -> str:
    """The same text with a newline for the white space at every sentence border; what is cut already stays as it is."""
    for mark, border, ends in _BOUNDARIES:
        if mark in text:
            text = _insert_breaks(text, border, ends)
    return text


def split_sentences(text: str) -> list[str]:
    """The sentences of a line, or of several."""
    return [sentence for sentence in insert_sentence_breaks(text).split("\n") if sentence and not sentence.isspace()]


def _insert_breaks(text: str, boundary: re.Pattern[str], is_boundary: IsBoundary | None = None) -> str:
    parts, last = [], 0
    for found in boundary.finditer(text):
        if is_boundary is None or is_boundary(text, last, found):
            parts.append(text[last : found.end()].rstrip())
            last = found.end()
    return "\n".join([*parts, text[last:]]) if parts else text


def _english_boundary(mark: str) -> re.Pattern[str]:
    """From the end mark to the start of the next sentence; `?` and `!` need no space between Chinese characters."""
    first = rf"\{mark}(?<![.!?…。！？；]{{2}})"  # of a run of marks, so that a megabyte of them is read once
    spaced = rf"[.!?…]*+{_CLOSERS}{_SPACE}++(?={_OPENERS}[^\W_a-z{_LOWER}])"
    return re.compile(f"{first}{spaced}" if mark == "." else rf"{first}(?:{spaced}|(?<=[{_CJK}]\{mark})[!?]*+(?=[{_CJK}]))")


def _chinese_boundary(mark: str) -> re.Pattern[str]:
    first = rf"{mark}(?<![。！？；…]{{2}})"
    closed = r"[.!?。！？；…]*+[”’」』）】》〉)\]}]*+"
    return re.compile(rf"""{first}{closed}(?:(?=[^{_NEVER_FIRST}"'])|["']*+{_SPACE}++(?=[^{_NEVER_FIRST}]))""")


def _ellipsis_ends_sentence(text: str, sentence_start: int, match: re.Match[str]) -> bool:
    return not text[match.end()].islower()


def _period_ends_sentence(text: str, sentence_start: int, match: re.Match[str]) -> bool:
    """A period also shortens words; what stands before it decides, and for some words what stands behind."""
    dot = match.start()
    tail = text[max(dot - 3, 0) : dot]
    if tail not in _ABBREVIATION_TAILS and tail.isalpha() and len(tail) == 3:
        return True
    if text[dot + 1] in ".!?…":
        return True
    line = text[max(sentence_start, dot - 20) : dot].rpartition("\n")[2]
    return _word_ends_sentence(line.rstrip(), text, match.end())


def _word_ends_sentence(preceding: str, text: str, next_start: int) -> bool:
    word = preceding.rsplit(None, 1)[-1].lstrip("\"'“‘«([{").rpartition("-")[2] if preceding else ""
    if word.isdigit():
        return len(word) > 3 or bool(preceding[: -len(word)].strip(" \t([-"))  # `1. Wash the rice` is one sentence
    if len(word) == 1 and word.lower() != word.upper():
        return word == "I" and _SENTENCE_STARTER.match(text, next_start) is not None
    if word in _BEFORE_NUMBER:
        return not text[next_start].isdigit()
    if word in _NEVER_FINAL:
        return False
    if word in _SOMETIMES_FINAL or _DOTTED_ABBREVIATION.fullmatch(word):
        return _SENTENCE_STARTER.match(text, next_start) is not None
    return True


_BOUNDARIES: list[tuple[str, re.Pattern[str], IsBoundary | None]] = [
    *((mark, _chinese_boundary(mark), None) for mark in "。！？；"),
    ("…", _chinese_boundary("…"), _ellipsis_ends_sentence),
    *((mark, _english_boundary(mark), None) for mark in "!?"),
    (".", _english_boundary("."), _period_ends_sentence),  # last: an enumeration is known by its place at the start of a line
]


# Chinese, Japanese, and their marks
_UNSPACED_SCRIPTS = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0002fa1f"
_SPACED_LINE_BREAK = re.compile(rf"(?<=[^\s{_UNSPACED_SCRIPTS}])\n(?=[^\s{_UNSPACED_SCRIPTS}])")
_SPACED_CHAR = re.compile(rf"[^\s{_UNSPACED_SCRIPTS}]")


def needs_line_spaces(tokenizer: Tokenizer) -> bool:
    """Its pieces begin with the space before their word, and it puts none before a text by itself."""
    return (
        tokenizer.word_start_prefix == "Ġ"
        and tokenizer.has_space_prefixed_tokens
        and not tokenizer.encode("a").tokens[0].startswith("Ġ")
    )


def add_line_spaces(lines: str, previous_char: str = "") -> str:
    """Lines of documents, an empty one between two: each that goes on with a document begins with a space, unless a script on
    either side has none. `before` is the character that the first line goes on from, if it does."""
    return (" " if _needs_leading_space(previous_char, lines) else "") + _SPACED_LINE_BREAK.sub("\n ", lines)


def count_line_spaces(lines: str, previous_char: str = "") -> int:
    """How many spaces stand for ends of lines."""
    return _needs_leading_space(previous_char, lines) + len(_SPACED_LINE_BREAK.findall(lines))


def _needs_leading_space(previous_char: str, lines: str) -> bool:
    return bool(_SPACED_CHAR.match(previous_char) and _SPACED_CHAR.match(lines))
