"""Word frequencies of any amount of text in bounded memory, by external merge sort."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import UserError
from ..writing import open_own

WordFrequency = tuple[str, int]

_MAX_OPEN_RUNS = 64  # runs merged at once: well below the limit of open files


@dataclass(frozen=True)
class WordCounts:
    """Iterates over (word, count) by descending count, then alphabetically; read from `path` on each iteration."""

    path: Path
    distinct: int
    total: int  # running words

    def __iter__(self) -> Iterator[WordFrequency]:
        return _read_entries(self.path)


def count_words(
    texts: Iterable[str],
    split_words: Callable[[str], list[str]],
    *,
    folder: Path,
    max_in_memory: int = 1_000_000,
    min_frequency: int = 1,
) -> WordCounts:
    """Count the words that `split_words` returns for each text; words with fewer than `min_frequency` are dropped.

    About `max_in_memory` distinct words (plus those of one text) are held in memory; the result does not depend on it. It
    is stored in `folder / "words.tsv"`, which the caller deletes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix="runs-") as runs_folder:
        by_word = _ExternalSorter(Path(runs_folder), "spelled", key=lambda entry: entry[0])
        for counter in _count_in_parts(texts, split_words, max_in_memory):
            by_word.spill(counter.items())
        frequent = (entry for entry in _sum_duplicates(by_word.merge()) if entry[1] >= min_frequency)
        by_count = _ExternalSorter(Path(runs_folder), "ranked", key=lambda entry: (-entry[1], entry[0]))
        distinct = total = 0
        while batch := list(islice(frequent, max_in_memory)):
            distinct, total = distinct + len(batch), total + sum(count for _, count in batch)
            by_count.spill(batch)
        path = _write_entries(Path(runs_folder) / "words.tsv", by_count.merge()).replace(folder / "words.tsv")
    return WordCounts(path, distinct, total)


class _ExternalSorter:
    """External merge sort: sorted runs are spilled to disk and merged while they are read."""

    def __init__(self, folder: Path, name: str, key: Callable[[WordFrequency], object]) -> None:
        self.folder, self.name, self.key = folder, name, key
        self.runs: list[Path] = []
        self.num_written = 0

    def spill(self, entries: Iterable[WordFrequency]) -> None:
        self._write_run(sorted(entries, key=self.key))  # type: ignore[arg-type]
        if len(self.runs) == _MAX_OPEN_RUNS:
            runs, self.runs = self.runs, []
            self._write_run(self._merge_runs(runs))
            for run in runs:
                run.unlink()

    def merge(self) -> Iterator[WordFrequency]:
        return self._merge_runs(self.runs)

    def _merge_runs(self, runs: list[Path]) -> Iterator[WordFrequency]:
        return heapq.merge(*map(_read_entries, runs), key=self.key)  # type: ignore[arg-type]

    def _write_run(self, entries: Iterable[WordFrequency]) -> None:
        self.runs.append(_write_entries(self.folder / f"{self.name}-{self.num_written}", entries))
        self.num_written += 1


def _count_in_parts(
    texts: Iterable[str], split_words: Callable[[str], list[str]], max_in_memory: int
) -> Iterator[Counter[str]]:
    counter: Counter[str] = Counter()
    for text in texts:
        counter.update(split_words(text))
        if len(counter) > max_in_memory:
            yield counter
            counter.clear()
    yield counter


def _sum_duplicates(entries: Iterator[WordFrequency]) -> Iterator[WordFrequency]:
    for word, duplicates in groupby(entries, key=lambda entry: entry[0]):
        yield word, sum(count for _, count in duplicates)


def _write_entries(path: Path, entries: Iterable[WordFrequency]) -> Path:
    """Write one `count<tab>word` per line, with backslash, newline and tab escaped."""
    with open_own(path, "w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{count}\t{_escape(word)}\n" for word, count in entries)
    return path


def _read_entries(path: Path) -> Iterator[WordFrequency]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line_number, line in enumerate(lines, 1):
            count, tab, word = line.partition("\t")
            if not (tab and word.endswith("\n") and count.isascii() and count.isdigit()):
                raise UserError(
                    f"{path}, line {line_number}: {line[:50]!r} is not COUNT<tab>WORD; delete the file and run again"
                )
            yield _unescape(word[:-1]), int(count)


def _escape(word: str) -> str:
    if word.isalnum():  # fast path for nearly all words
        return word
    return word.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def _unescape(word: str) -> str:
    if "\\" not in word:
        return word
    parts = (part.replace("\\n", "\n").replace("\\t", "\t") for part in word.split("\\\\"))
    return "\\".join(parts)
