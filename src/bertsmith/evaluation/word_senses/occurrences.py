"""One word in many sentences: where it stands in each, and in which sense, where somebody said so."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ...tasks.table_rows import BadRow, ExampleRow, read_rows
from ...tokenization.chinese import IDEOGRAPH
from ...tokenization.tables import LineReader

MARKED_WORD = re.compile(r"\[\[(.+?)\]\]")  # a word pointed at: on the left [[bank]] of the river
TRAIN_FILE, TEST_FILE = "train.data.txt", "test.data.txt"
COMPRESSION_SUFFIXES = ("", ".xz", ".gz")


@dataclass(frozen=True)
class Occurrence:
    """The word is `text[start:end]`."""

    text: str
    start: int
    end: int
    sense: str | None
    location: str  # file and line, for messages

    @property
    def word(self) -> str:
        return self.text[self.start : self.end]


@dataclass(frozen=True)
class WordOccurrences:
    """All there is of one word; without sentences to be judged on, each is judged by all the others."""

    word: str
    train: list[Occurrence]
    test: list[Occurrence]

    @property
    def senses(self) -> list[str]:
        """Those of the sentences to learn from, the most frequent first."""
        known = [one.sense for one in self.train if one.sense is not None]
        return sorted(set(known), key=lambda sense: (-known.count(sense), sense))

    @property
    def displayed(self) -> list[Occurrence]:
        return self.test or self.train


def read_occurrences(
    path: Path, word: str | None, on_bad_row: Callable[[UserError], None] | None = None
) -> list[WordOccurrences]:
    """Of a table with columns text and, if it has them, position (of the word, counted from 0 between spaces) and sense;
    or of a folder of CoarseWSD-20, or of all its words.

    A table points at the word by its position, by `[[bank]]`, or not at all: then it is the first `word` of the text. Rows
    that are broken, or do not hold the word, are left out if somebody wants to hear of them.
    """
    if path.is_dir():
        return [_read_folder(one) for one in _word_folders(path, word)]
    found = [one for row in read_rows(path) if (one := _parse_row(row, word, on_bad_row))]
    if not found:
        usable = " that can be used" if on_bad_row else ""
        raise UserError(f"{path} holds no sentence{usable}; it needs a column text, a sentence a line")
    return [WordOccurrences(word or found[0].word.lower(), found, [])]


def _parse_row(row: ExampleRow | BadRow, word: str | None, on_bad_row: Callable[[UserError], None] | None) -> Occurrence | None:
    try:
        return _parse_occurrence(row, word)
    except UserError as fault:
        if on_bad_row is None:
            raise
        on_bad_row(fault)
        return None


def _parse_occurrence(row: ExampleRow | BadRow, word: str | None) -> Occurrence:
    if isinstance(row, BadRow):
        raise row
    text, sense, position = row.get_text("text"), row.get("sense"), row.get_number("position")
    text, (start, end) = _locate_word(text, position, word, row)
    return Occurrence(text, start, end, None if sense in (None, "") else str(sense), row.location)


def _locate_word(text: str, position: float | None, word: str | None, row: ExampleRow) -> tuple[str, tuple[int, int]]:
    if position is not None:
        return text, nth_word_span(text, int(position), row.location)
    if marked := MARKED_WORD.search(text):
        plain = text[: marked.start()] + marked[1] + text[marked.end() :]
        return plain, (marked.start(), marked.start() + len(marked[1]))
    if word is None:
        raise row.error("no word is pointed at; write it as [[word]], add a column position, or give word=...")
    return text, find_word(text, word, row.location)


def nth_word_span(text: str, position: int, location: str) -> tuple[int, int]:
    """Of the words between spaces, from 0."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if not 0 <= position < len(spans):
        raise UserError(f"{location}: position {position} of {len(spans)} words is not there; the first word has position 0")
    return spans[position]


def find_word(text: str, word: str, location: str) -> tuple[int, int]:
    """Small and capital letters are alike; a word must stand alone, but where it begins or ends with an ideograph."""
    before, after = ("" if IDEOGRAPH.match(end) else border for end, border in ((word[:1], r"(?<!\w)"), (word[-1:], r"(?!\w)")))
    found = re.search(f"{before}{re.escape(word)}{after}", text, re.IGNORECASE)
    if not found:
        raise UserError(f"{location} does not hold the word {word!r}; mend the sentence, point at another form as [[form]], or "
                       "leave such rows out by skip_bad=true")  # fmt: skip
    return found.span()


def _word_folders(path: Path, word: str | None) -> list[Path]:
    """The folder itself, the one in it that has the name of the word, or all in it that hold sentences."""
    if _find_file(path, TRAIN_FILE) is not None:
        return [path]
    found = [one for one in sorted(path.iterdir()) if one.is_dir() and _find_file(one, TRAIN_FILE) is not None]
    chosen = [one for one in found if word is None or one.name == word]
    if not chosen:
        there = f"only: {', '.join(one.name for one in found)}" if found else f"no folder with a {TRAIN_FILE}"
        raise UserError(f"{path} holds no sentences{f' of {word!r}' if word else ''}, {there}")
    return chosen


def _read_folder(path: Path) -> WordOccurrences:
    names = _read_sense_names(path / "classes_map.txt")
    learn = list(_read_split(path, TRAIN_FILE, names))
    if not learn:
        raise UserError(
            f"{path}: {TRAIN_FILE} holds no sentence, and senses are learnt from those; fill it, or leave the folder out"
        )
    return WordOccurrences(path.name, learn, list(_read_split(path, TEST_FILE, names)))


def _read_split(path: Path, name: str, sense_names: dict[str, str]) -> Iterator[Occurrence]:
    """A line is `position<tab>sentence`; line by line beside it, in .gold.txt, the number of the sense."""
    texts, golds = (_find_file(path, wanted) for wanted in (name, name.replace(".data.", ".gold.")))
    if texts is None or golds is None:
        raise UserError(f"{path} lacks {name} or its gold file; a folder of CoarseWSD-20 has both, packed or not")
    senses = [line.strip() for _, line in LineReader(golds)]
    for number, line in LineReader(texts):
        place, (position, tab, text) = f"{texts}, line {number:,}", line.partition("\t")
        if not tab or not position.strip().isdigit() or number > len(senses):
            raise UserError(f"{place} is not `position<tab>sentence` with a sense beside it in {golds.name}")
        yield Occurrence(
            text, *nth_word_span(text, int(position), place), sense_names.get(senses[number - 1], senses[number - 1]), place
        )


def _read_sense_names(path: Path) -> dict[str, str]:
    """{"0": "bank_bank", ...} in words for people: `bank`, `bank (geography)`; numbers stay where there is no such file."""
    if not path.exists():
        return {}
    try:
        names = {str(key): str(name) for key, name in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a table of senses in JSON: {error}") from None
    return {key: name.partition("_")[2].replace("_", " ") or name for key, name in names.items()}


def _find_file(path: Path, name: str) -> Path | None:
    return next((file for ending in COMPRESSION_SUFFIXES if (file := path / f"{name}{ending}").exists()), None)
