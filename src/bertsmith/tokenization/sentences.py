"""Rule-based sentence splitting for English and Chinese, fast enough for megabytes of text at a time.

Each end mark has its own regular expression beginning with that literal character, since the engine finds a literal
several times faster than a character class. Only matches of the ambiguous marks (period, ellipsis) are checked in Python.
Also here: the spaces that join the lines of a document for tokenizers with space-prefixed tokens (GPT-2, RoBERTa).
"""

import re
from collections.abc import Callable

from .tokenizer import Tokenizer

IsBoundary = Callable[[str, int, re.Match[str]], bool]  # (text, start of the sentence, candidate boundary)

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
# Fast path: a word with another three-letter ending is not an abbreviation.
_ABBREVIATION_TAILS = frozenset(word[-3:] for word in _NEVER_FINAL | _BEFORE_NUMBER | _SOMETIMES_FINAL)

_DOTTED_ABBREVIATION = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # U.S, a.m, J.R.R
_SENTENCE_STARTER = re.compile(
    rf"{_OPENERS}(?:(?:The|This|That|These|Those|There|Then|They|Their|He|His|She|Her|It|Its|We|Our|You|Your|I|My|A|An|And|But|"
    r"So|Or|Yet|If|In|On|At|As|By|For|From|With|To|After|Before|When|While|Where|Who|What|Why|How|Once|Since|Until|Although|"
    rf"Though|Because|However|Thus|Here|Now|Not|No|Some|Many|Most|All|Both|Each|Another|Such|Also)(?![\w-])|[{_CJK}])"
)

# Scripts written without spaces: Chinese and Japanese, with their punctuation.
_UNSPACED_SCRIPTS = "\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0002fa1f"
_SPACED_LINE_BREAK = re.compile(rf"(?<=[^\s{_UNSPACED_SCRIPTS}])\n(?=[^\s{_UNSPACED_SCRIPTS}])")
_SPACED_CHAR = re.compile(rf"[^\s{_UNSPACED_SCRIPTS}]")


def insert_sentence_breaks(text: str) -> str:
    """The text with the white space at every sentence boundary replaced by a newline; existing newlines stay."""
    for end_mark, boundary, is_boundary in _BOUNDARIES:
        if end_mark in text:
            text = _insert_breaks(text, boundary, is_boundary)
    return text


def split_sentences(text: str) -> list[str]:
    """The sentences of one or more lines."""
    return [sentence for sentence in insert_sentence_breaks(text).split("\n") if sentence and not sentence.isspace()]


def needs_line_spaces(tokenizer: Tokenizer) -> bool:
    """Whether tokens include the space before their word ("Ġthe") and the tokenizer adds no space before a text."""
    return (
        tokenizer.word_start_prefix == "Ġ"
        and tokenizer.has_space_prefixed_tokens
        and not tokenizer.encode("a").tokens[0].startswith("Ġ")
    )


def add_line_spaces(lines: str, previous_char: str = "") -> str:
    """Begin each line that continues a document with a space, except between scripts written without spaces.

    Documents are separated by an empty line. `previous_char` is the last character before the first line, if that line
    continues a document.
    """
    return (" " if _needs_leading_space(previous_char, lines) else "") + _SPACED_LINE_BREAK.sub("\n ", lines)


def count_line_spaces(lines: str, previous_char: str = "") -> int:
    """Number of spaces that `add_line_spaces` inserts."""
    return _needs_leading_space(previous_char, lines) + len(_SPACED_LINE_BREAK.findall(lines))


def _insert_breaks(text: str, boundary: re.Pattern[str], is_boundary: IsBoundary | None = None) -> str:
    sentences, start = [], 0
    for match in boundary.finditer(text):
        if is_boundary is None or is_boundary(text, start, match):
            sentences.append(text[start : match.end()].rstrip())
            start = match.end()
    return "\n".join([*sentences, text[start:]]) if sentences else text


def _english_boundary(end_mark: str) -> re.Pattern[str]:
    """Matches from the end mark to the start of the next sentence; `?` and `!` need no space between Chinese characters."""
    first_mark = rf"\{end_mark}(?<![.!?…。！？；]{{2}})"  # only the first of a run of marks: linear time on a megabyte of them
    before_space = rf"[.!?…]*+{_CLOSERS}{_SPACE}++(?={_OPENERS}[^\W_a-z{_LOWER}])"
    return re.compile(
        f"{first_mark}{before_space}"
        if end_mark == "."
        else rf"{first_mark}(?:{before_space}|(?<=[{_CJK}]\{end_mark})[!?]*+(?=[{_CJK}]))"
    )


def _chinese_boundary(end_mark: str) -> re.Pattern[str]:
    first_mark = rf"{end_mark}(?<![。！？；…]{{2}})"
    closing = r"[.!?。！？；…]*+[”’」』）】》〉)\]}]*+"
    return re.compile(rf"""{first_mark}{closing}(?:(?=[^{_NEVER_FIRST}"'])|["']*+{_SPACE}++(?=[^{_NEVER_FIRST}]))""")


def _ellipsis_ends_sentence(text: str, sentence_start: int, match: re.Match[str]) -> bool:
    return not text[match.end()].islower()


def _period_ends_sentence(text: str, sentence_start: int, match: re.Match[str]) -> bool:
    """Whether a period ends a sentence rather than an abbreviation: by the word before it, and for some by the next."""
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
    *((end_mark, _chinese_boundary(end_mark), None) for end_mark in "。！？；"),
    ("…", _chinese_boundary("…"), _ellipsis_ends_sentence),
    *((end_mark, _english_boundary(end_mark), None) for end_mark in "!?"),
    (".", _english_boundary("."), _period_ends_sentence),  # last: list numbers (`1.`) are recognised at the start of a line
]


def _needs_leading_space(previous_char: str, lines: str) -> bool:
    return bool(_SPACED_CHAR.match(previous_char) and _SPACED_CHAR.match(lines))
