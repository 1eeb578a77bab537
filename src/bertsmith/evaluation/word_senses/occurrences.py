"""Reads occurrences of a word with their senses, from a table or from CoarseWSD-20 (Loureiro et al. 2021)."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...artifacts import read_object
from ...errors import UserError
from ...tasks.table_rows import BadRow, ExampleRow, read_rows
from ...tokenization.chinese import IDEOGRAPH
from ...tokenization.tables import LineReader

MARKED_WORD = re.compile(r"\[\[(.+?)\]\]")  # a marked word: on the left [[bank]] of the river
TRAIN_FILE, TEST_FILE = "train.data.txt", "test.data.txt"
COMPRESSION_SUFFIXES = ("", ".xz", ".gz")


@dataclass(frozen=True)
class Occurrence:
    """A word in a sentence, `text[start:end]`, and its sense if known."""

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
    """All occurrences of one word; where `test` is empty, `train` is evaluated by leave-one-out."""

    word: str
    train: list[Occurrence]
    test: list[Occurrence]

    @property
    def senses(self) -> list[str]:
        """Senses of the training occurrences, the most frequent first."""
        known = [occurrence.sense for occurrence in self.train if occurrence.sense is not None]
        return sorted(set(known), key=lambda sense: (-known.count(sense), sense))

    @property
    def displayed(self) -> list[Occurrence]:
        """The occurrences shown in charts."""
        return self.test or self.train


def read_occurrences(
    path: Path, word: str | None, on_bad_row: Callable[[UserError], None] | None = None
) -> list[WordOccurrences]:
    """Reads a table with a column text and optional columns position and sense, or a folder of CoarseWSD-20.

    In a table the word is given by `position` (index among words separated by spaces, from 0), by `[[bank]]` in the text, or
    else is the first match of `word`. Bad rows and rows without the word are passed to `on_bad_row` and skipped, or raise
    if it is None. A folder holds one word of CoarseWSD-20, or one folder per word.
    """
    if path.is_dir():
        return [_read_folder(folder) for folder in _word_folders(path, word)]
    occurrences = [occurrence for row in read_rows(path) if (occurrence := _parse_row(row, word, on_bad_row))]
    if not occurrences:
        usable = "valid " if on_bad_row else ""
        raise UserError(f"{path} has no {usable}rows; it needs a column `text` with one sentence per row")
    return [WordOccurrences(word or occurrences[0].word.lower(), occurrences, [])]


def _parse_row(row: ExampleRow | BadRow, word: str | None, on_bad_row: Callable[[UserError], None] | None) -> Occurrence | None:
    try:
        return _parse_occurrence(row, word)
    except UserError as error:
        if on_bad_row is None:
            raise
        on_bad_row(error)
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
        raise row.error("no word is marked; write it as [[word]], add a column `position`, or set word=WORD")
    return text, find_word(text, word, row.location)


def nth_word_span(text: str, position: int, location: str) -> tuple[int, int]:
    """(start, end) of the `position`-th word (from 0), words being separated by whitespace."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if not 0 <= position < len(spans):
        raise UserError(
            f"{location}: position {position} is out of range for {len(spans)} words; the first word has position 0"
        )
    return spans[position]


def find_word(text: str, word: str, location: str) -> tuple[int, int]:
    """(start, end) of the first match, ignoring case; at whole words only, except next to a CJK ideograph."""
    before, after = (
        "" if IDEOGRAPH.match(char) else boundary for char, boundary in ((word[:1], r"(?<!\w)"), (word[-1:], r"(?!\w)"))
    )
    match = re.search(f"{before}{re.escape(word)}{after}", text, re.IGNORECASE)
    if not match:
        raise UserError(f"{location} does not contain the word {word!r}; mark an inflected form as [[form]], or set "
                        "skip_bad=true to skip such rows")  # fmt: skip
    return match.span()


def _word_folders(path: Path, word: str | None) -> list[Path]:
    """`path` itself if it holds a word, else its subfolders that hold one (only that of `word`, if given)."""
    if _find_file(path, TRAIN_FILE) is not None:
        return [path]
    folders = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and _find_file(folder, TRAIN_FILE) is not None]
    selected = [folder for folder in folders if word is None or folder.name == word]
    if not selected:
        if not folders:
            raise UserError(f"{path} has no folder with a {TRAIN_FILE}, as CoarseWSD-20 has")
        raise UserError(f"{path} has no folder {word!r}; choose one of {', '.join(folder.name for folder in folders)}")
    return selected


def _read_folder(path: Path) -> WordOccurrences:
    sense_names = _read_sense_names(path / "classes_map.txt")
    train = list(_read_split(path, TRAIN_FILE, sense_names))
    if not train:
        raise UserError(f"{path}: {TRAIN_FILE} is empty, so there are no labeled occurrences to learn senses from")
    return WordOccurrences(path.name, train, list(_read_split(path, TEST_FILE, sense_names)))


def _read_split(path: Path, name: str, sense_names: dict[str, str]) -> Iterator[Occurrence]:
    """A line of the data file is `position<tab>sentence`; the same line of .gold.txt is the id of the sense."""
    data_file, gold_file = (_find_file(path, filename) for filename in (name, name.replace(".data.", ".gold.")))
    if data_file is None or gold_file is None:
        raise UserError(f"{path} needs both {name} and {name.replace('.data.', '.gold.')} (or .gz, .xz), as in CoarseWSD-20")
    senses = [line.strip() for _, line in LineReader(gold_file)]
    for number, line in LineReader(data_file):
        location, (position, tab, text) = f"{data_file}, line {number:,}", line.partition("\t")
        if not tab or not position.strip().isdigit() or number > len(senses):
            raise UserError(f"{location} is not `position<tab>sentence` with a sense on the same line of {gold_file.name}")
        yield Occurrence(
            text,
            *nth_word_span(text, int(position), location),
            sense_names.get(senses[number - 1], senses[number - 1]),
            location,
        )


def _read_sense_names(path: Path) -> dict[str, str]:
    """Sense names by id: {"0": "bank_bank"} becomes {"0": "bank"}; empty where there is no such file."""
    if not path.exists():
        return {}
    names = {str(key): str(name) for key, name in read_object(path).items()}
    return {key: name.partition("_")[2].replace("_", " ") or name for key, name in names.items()}


def _find_file(path: Path, name: str) -> Path | None:
    return next((file for suffix in COMPRESSION_SUFFIXES if (file := path / f"{name}{suffix}").exists()), None)
