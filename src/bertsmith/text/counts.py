"""How often each word occurs, for any amount of text in bounded memory: what does not fit is sorted out on disk."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

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
    in `folder / "words.tsv"`: `folder` is the caller's to delete when the counts have served.
    """
    folder.mkdir(parents=True, exist_ok=True)
    summed = _summed(_runs(_batches(texts, words, limit), folder))
    kept = ((word, count) for word, count in summed if count >= least)
    distinct = total = 0

    def noted(entries: Iterable[Entry]) -> Iterator[Entry]:
        nonlocal distinct, total
        for word, count in entries:
            distinct, total = distinct + 1, total + count
            yield word, count

    path = folder / "words.tsv"
    _write(path, noted(_by_count(kept, limit, folder)))
    _forget(folder)
    return WordCounts(path, distinct, total)


def _batches(texts: Iterable[str], words: Callable[[str], list[str]], limit: int) -> Iterator[list[Entry]]:
    """Sorted counts of as many blocks as hold about `limit` distinct words, and so on to the end."""
    counter: Counter[str] = Counter()
    for text in texts:
        counter.update(words(text))
        if len(counter) > limit:
            yield sorted(counter.items())
            counter.clear()
    yield sorted(counter.items())


def _by_count(entries: Iterator[Entry], limit: int, folder: Path) -> Iterator[Entry]:
    batches = iter(lambda: sorted(islice(entries, limit), key=_rank), [])
    return _merged(_runs(batches, folder, key=_rank), key=_rank)


def _rank(entry: Entry) -> tuple[int, str]:
    return -entry[1], entry[0]


def _runs(batches: Iterator[list[Entry]], folder: Path, key: Callable[[Entry], object] | None = None) -> list[Iterable[Entry]]:
    """At most so many sorted runs that all can be open at once; the last batch stays in memory, the others on disk."""
    runs: list[Iterable[Entry]] = []
    batch = next(batches, [])
    for number, following in enumerate(batches):
        runs.append(_spilled(batch, folder / f"run-{key is None:d}-{number}.part"))
        if len(runs) == _OPEN:
            runs = [_spilled(_merged(runs, key), folder / f"run-{key is None:d}-to-{number}.part")]
        batch = following
    return [*runs, batch]


def _spilled(entries: Iterable[Entry], path: Path) -> Iterable[Entry]:
    _write(path, entries)
    return WordCounts(path, 0, 0)
