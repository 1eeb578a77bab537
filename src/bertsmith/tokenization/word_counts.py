"""How often each word occurs, for any amount of text in bounded memory: what does not fit is sorted out on disk."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import BadInput

Entry = tuple[str, int]

_OPEN = 64  # runs merged at once: far below the number of files a process may hold open


@dataclass(frozen=True)
class WordCounts:
    """(word, count) in falling order of count, then by spelling; streamed from `path` each time it is iterated."""

    path: Path
    distinct: int
    total: int  # running words

    def __iter__(self) -> Iterator[Entry]:
        return _read(self.path)


def count_words(
    texts: Iterable[str], words: Callable[[str], list[str]], *, folder: Path, limit: int = 1_000_000, least: int = 1
) -> WordCounts:
    """Count what `words` makes of each block of text; words seen fewer than `least` times are left out.

    About `limit` distinct words (and those of one block) are held in memory; the result does not depend on it. It lives
    in `folder / "words.tsv"`: the folder is the caller's to delete when the counts have served.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix="runs-") as runs:
        spelled = _Sorter(Path(runs), "spelled", key=lambda entry: entry[0])
        for counter in _counters(texts, words, limit):
            spelled.spill(counter.items())
        kept = (entry for entry in _summed(spelled.merged()) if entry[1] >= least)
        ranked = _Sorter(Path(runs), "ranked", key=lambda entry: (-entry[1], entry[0]))
        distinct = total = 0
        while batch := list(islice(kept, limit)):
            distinct, total = distinct + len(batch), total + sum(count for _, count in batch)
            ranked.spill(batch)
        path = _write(Path(runs) / "words.tsv", ranked.merged()).replace(folder / "words.tsv")
    return WordCounts(path, distinct, total)


class _Sorter:
    """Sorts more entries than memory holds: sorted runs go to disk and are merged while they are read."""

    def __init__(self, folder: Path, name: str, key: Callable[[Entry], object]) -> None:
        self.folder, self.name, self.key = folder, name, key
        self.runs: list[Path] = []
        self.written = 0

    def spill(self, entries: Iterable[Entry]) -> None:
        self._write(sorted(entries, key=self.key))  # type: ignore[arg-type]
        if len(self.runs) == _OPEN:
            runs, self.runs = self.runs, []
            self._write(self._merged(runs))
            for run in runs:
                run.unlink()

    def merged(self) -> Iterator[Entry]:
        return self._merged(self.runs)

    def _merged(self, runs: list[Path]) -> Iterator[Entry]:
        return heapq.merge(*map(_read, runs), key=self.key)  # type: ignore[arg-type]

    def _write(self, entries: Iterable[Entry]) -> None:
        self.runs.append(_write(self.folder / f"{self.name}-{self.written}", entries))
        self.written += 1


def _counters(texts: Iterable[str], words: Callable[[str], list[str]], limit: int) -> Iterator[Counter[str]]:
    counter: Counter[str] = Counter()
    for text in texts:
        counter.update(words(text))
        if len(counter) > limit:
            yield counter
            counter.clear()
    yield counter


def _summed(entries: Iterator[Entry]) -> Iterator[Entry]:
    for word, same in groupby(entries, key=lambda entry: entry[0]):
        yield word, sum(count for _, count in same)


def _write(path: Path, entries: Iterable[Entry]) -> Path:
    """One `count<tab>word` a line, with the three characters that would break a line escaped."""
    with path.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{count}\t{_escaped(word)}\n" for word, count in entries)
    return path


def _read(path: Path) -> Iterator[Entry]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            count, tab, word = line.partition("\t")
            if not (tab and word.endswith("\n") and count.isascii() and count.isdigit()):
                raise BadInput(f"{path}, line {number}: {line[:50]!r} is not count<tab>word; count the words again")
            yield _unescaped(word[:-1]), int(count)


def _escaped(word: str) -> str:
    if word.isalnum():  # nearly all of them
        return word
    return word.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def _unescaped(word: str) -> str:
    if "\\" not in word:
        return word
    parts = (part.replace("\\n", "\n").replace("\\t", "\t") for part in word.split("\\\\"))
    return "\\".join(parts)
