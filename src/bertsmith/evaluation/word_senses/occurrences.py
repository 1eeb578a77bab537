"""One word in many sentences: where it stands in each, and in which sense, where somebody said so."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import BadInput
from ...tasks.table_rows import BadRow, Row, rows
from ...tokenization.chinese import IDEOGRAPH
from ...tokenization.tables import Lines

MARKED = re.compile(r"\[\[(.+?)\]\]")  # a word pointed at: on the left [[bank]] of the river
TRAIN, TEST = "train.data.txt", "test.data.txt"
PACKED = ("", ".xz", ".gz")


@dataclass(frozen=True)
class Occurrence:
    """The word is `text[start:end]`."""

    text: str
    start: int
    end: int
    sense: str | None
    place: str  # file and line, for messages

    @property
    def word(self) -> str:
        return self.text[self.start : self.end]


@dataclass(frozen=True)
class Sentences:
    """All there is of one word; without sentences to be judged on, each is judged by all the others."""

    word: str
    learn: list[Occurrence]
    judge: list[Occurrence]

    @property
    def senses(self) -> list[str]:
        """Those of the sentences to learn from, the most frequent first."""
        known = [one.sense for one in self.learn if one.sense is not None]
        return sorted(set(known), key=lambda sense: (-known.count(sense), sense))

    @property
    def shown(self) -> list[Occurrence]:
        return self.judge or self.learn


def read(path: Path, word: str | None, skipped: Callable[[BadInput], None] | None = None) -> list[Sentences]:
    """Of a table with columns text and, if it has them, position (of the word, counted from 0 between spaces) and sense;
    or of a folder of CoarseWSD-20, or of all its words.

    A table points at the word by its position, by `[[bank]]`, or not at all: then it is the first `word` of the text. Rows
    that are broken, or do not hold the word, are left out if somebody wants to hear of them.
    """
    if path.is_dir():
        return [_folder(one) for one in _words(path, word)]
    found = [one for row in rows(path) if (one := _of_row(row, word, skipped))]
    if not found:
        usable = " that can be used" if skipped else ""
        raise BadInput(f"{path} holds no sentence{usable}; it needs a column text, a sentence a line")
    return [Sentences(word or found[0].word.lower(), found, [])]


def _of_row(row: Row | BadRow, word: str | None, skipped: Callable[[BadInput], None] | None) -> Occurrence | None:
    try:
        return _occurrence(row, word)
    except BadInput as fault:
        if skipped is None:
            raise
        skipped(fault)
        return None


def _occurrence(row: Row | BadRow, word: str | None) -> Occurrence:
    if isinstance(row, BadRow):
        raise row
    text, sense, position = row.text("text"), row.get("sense"), row.number("position")
    text, (start, end) = _place(text, position, word, row)
    return Occurrence(text, start, end, None if sense in (None, "") else str(sense), row.place)


def _place(text: str, position: float | None, word: str | None, row: Row) -> tuple[str, tuple[int, int]]:
    if position is not None:
        return text, nth(text, int(position), row.place)
    if marked := MARKED.search(text):
        plain = text[: marked.start()] + marked[1] + text[marked.end() :]
        return plain, (marked.start(), marked.start() + len(marked[1]))
    if word is None:
        raise row.bad("no word is pointed at; write it as [[word]], add a column position, or give word=...")
    return text, first(text, word, row.place)


def nth(text: str, position: int, place: str) -> tuple[int, int]:
    """Of the words between spaces, from 0."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if not 0 <= position < len(spans):
        raise BadInput(f"{place}: position {position} of {len(spans)} words is not there; the first word has position 0")
    return spans[position]


def first(text: str, word: str, place: str) -> tuple[int, int]:
    """Small and capital letters are alike; a word must stand alone, but where it begins or ends with an ideograph."""
    before, after = ("" if IDEOGRAPH.match(end) else border for end, border in ((word[:1], r"(?<!\w)"), (word[-1:], r"(?!\w)")))
    found = re.search(f"{before}{re.escape(word)}{after}", text, re.IGNORECASE)
    if not found:
        raise BadInput(f"{place} does not hold the word {word!r}; mend the sentence, point at another form as [[form]], or "
                       "leave such rows out by skip_bad=true")  # fmt: skip
    return found.span()


def _words(path: Path, word: str | None) -> list[Path]:
    """The folder itself, the one in it that has the name of the word, or all in it that hold sentences."""
    if _file(path, TRAIN) is not None:
        return [path]
    found = [one for one in sorted(path.iterdir()) if one.is_dir() and _file(one, TRAIN) is not None]
    chosen = [one for one in found if word is None or one.name == word]
    if not chosen:
        there = f"only: {', '.join(one.name for one in found)}" if found else f"no folder with a {TRAIN}"
        raise BadInput(f"{path} holds no sentences{f' of {word!r}' if word else ''}, {there}")
    return chosen


def _folder(path: Path) -> Sentences:
    names = _classes(path / "classes_map.txt")
    learn = list(_golden(path, TRAIN, names))
    if not learn:
        raise BadInput(f"{path}: {TRAIN} holds no sentence, and senses are learnt from those; fill it, or leave the folder out")
    return Sentences(path.name, learn, list(_golden(path, TEST, names)))


def _golden(path: Path, name: str, names: dict[str, str]) -> Iterator[Occurrence]:
    """A line is `position<tab>sentence`; line by line beside it, in .gold.txt, the number of the sense."""
    texts, golds = (_file(path, wanted) for wanted in (name, name.replace(".data.", ".gold.")))
    if texts is None or golds is None:
        raise BadInput(f"{path} lacks {name} or its gold file; a folder of CoarseWSD-20 has both, packed or not")
    senses = [line.strip() for _, line in Lines(golds)]
    for number, line in Lines(texts):
        place, (position, tab, text) = f"{texts}, line {number:,}", line.partition("\t")
        if not tab or not position.strip().isdigit() or number > len(senses):
            raise BadInput(f"{place} is not `position<tab>sentence` with a sense beside it in {golds.name}")
        yield Occurrence(text, *nth(text, int(position), place), names.get(senses[number - 1], senses[number - 1]), place)


def _classes(path: Path) -> dict[str, str]:
    """{"0": "bank_bank", ...} in words for people: `bank`, `bank (geography)`; numbers stay where there is no such file."""
    if not path.exists():
        return {}
    try:
        names = {str(key): str(name) for key, name in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError) as error:
        raise BadInput(f"{path} is not a table of senses in JSON: {error}") from None
    return {key: name.partition("_")[2].replace("_", " ") or name for key, name in names.items()}


def _file(path: Path, name: str) -> Path | None:
    return next((file for ending in PACKED if (file := path / f"{name}{ending}").exists()), None)
