"""Which pieces shorten the words of a text most: taken one by one, each with its gain at the time it is taken.

A gain is a number of tokens: those that the text has before the piece is there, less those it has with it.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from .wordpiece_trainer import INSIDE

Key = TypeVar("Key", bound=Any)
Pair = tuple[str, str]

PIECE = 32  # characters of a new piece at most: what is longer is no word, and there are too many ways to cut it


class Taker(Protocol):
    def best(self, least: int) -> tuple[Any, int] | None: ...

    def take(self, key: Any) -> None: ...


def taken(words: Taker, room: int, least: int, progress: Callable[[int, int], None]) -> list[tuple[Any, int]]:
    """At most `room` pieces and the gain of each; there are fewer when none that occurs `least` times gains any more."""
    found: list[tuple[Any, int]] = []
    while len(found) < room and (best := words.best(least)) is not None:
        words.take(best[0])
        found.append(best)
        progress(len(found), room)
    return found


class Ranking(Generic[Key]):
    """Gains that change, and the best of them; of equal gains, the first by spelling."""

    def __init__(self) -> None:
        self.gain: dict[Key, int] = defaultdict(int)
        self.changed: set[Key] = set()
        self.heap: list[tuple[int, Key]] = []

    def change(self, key: Key, by: int) -> None:
        self.gain[key] += by
        self.changed.add(key)

    def remove(self, key: Key) -> None:
        self.gain.pop(key, None)
        self.changed.discard(key)

    def best(self) -> tuple[Key, int] | None:
        for key in self.changed:
            if self.gain[key] > 0:
                heappush(self.heap, (-self.gain[key], key))
        self.changed.clear()
        while self.heap and self.gain.get(self.heap[0][1]) != -self.heap[0][0]:
            heappop(self.heap)  # its gain was another one then
        return (self.heap[0][1], -self.heap[0][0]) if self.heap else None


class Longest:
    """Words that a vocabulary cuts by its longest match, over and over from the left: WordPiece.

    What may become a piece is any run of neighbouring pieces of a word, the whole word among them, and a character that
    no piece spells. A piece may also cut a word anew that holds it across a border: this counts as it comes out, even
    below zero. A word that cannot be spelled counts as one token more than it has characters.
    """

    def __init__(self, pieces: Iterable[str], counts: Iterable[tuple[str, int]]) -> None:
        self.known: tuple[set[str], set[str]] = set(), set()  # what begins a word, what stands inside one
        self.longest = 0
        for piece in pieces:
            self._know(piece)
        split = [(word, count) for word, count in counts if self._ends(word)[0] < len(word)]
        self.words, self.counts = [word for word, _ in split], [count for _, count in split]
        self.text = "\n" + "".join(f"{word}\n" for word in self.words)
        self.starts = [1]
        for word in self.words:
            self.starts.append(self.starts[-1] + len(word) + 1)
        self.ranking: Ranking[str] = Ranking()
        self._rank()

    def best(self, least: int) -> tuple[str, int] | None:
        while (best := self.ranking.best()) is not None and self._uses(best[0]) < least:
            self.ranking.remove(best[0])  # long, perhaps, but too rare to learn a row for
        return best

    def take(self, piece: str) -> None:
        """Words that hold the piece anywhere give other pieces another gain; what they had gained goes out first."""
        holders = list(self._holders(piece))
        for number in holders:
            for other, saved in self._savings(self.words[number]):
                self.ranking.change(other, -saved * self.counts[number])
        self._know(piece)
        self.ranking.remove(piece)
        fresh = {run for number in holders for run in self._runs(self.words[number]) if run not in self.ranking.gain}
        for number in holders:
            for other, saved in self._savings(self.words[number]):
                self.ranking.change(other, saved * self.counts[number])
        for run in sorted(fresh):
            self.ranking.change(run, sum(self._saved(number, run) for number in self._holders(run)))

    def _rank(self) -> None:
        for word in self.words:
            self.ranking.gain |= dict.fromkeys(self._runs(word), 0)
        for word, count in zip(self.words, self.counts, strict=True):
            for piece, saved in self._savings(word):
                self.ranking.change(piece, saved * count)

    def _know(self, piece: str) -> None:
        body = piece.removeprefix(INSIDE)
        if body:
            self.known[piece != body].add(body)
            self.longest = max(self.longest, len(body))

    def _ends(self, word: str) -> list[int]:
        """For each place in a word, where the longest piece from there ends; where none begins, the place itself."""
        size, ends = len(word), []
        for i in range(size):
            known, most = self.known[i > 0], min(size, i + self.longest)
            ends.append(next((e for e in range(most, i, -1) if word[i:e] in known), i))
        return ends

    def _savings(self, word: str) -> Iterator[tuple[str, int]]:
        """What each ranked piece that would change the word's cut saves in it."""
        ends = self._ends(word)
        before, seen = _tokens(word, ends), set()
        for i in _path(ends):
            for e in range(ends[i] + 1, min(len(word), i + PIECE) + 1):
                piece = _named(word, i, e)
                if piece in self.ranking.gain and piece not in seen:
                    seen.add(piece)
                    yield piece, before - _tokens(word, ends, word[i:e], i > 0)
            if ends[i] == i:
                return  # behind a character that nothing spells, a piece changes nothing

    def _saved(self, number: int, piece: str) -> int:
        word, body = self.words[number], piece.removeprefix(INSIDE)
        ends = self._ends(word)
        return self.counts[number] * (_tokens(word, ends) - _tokens(word, ends, body, piece != body))

    def _uses(self, piece: str) -> int:
        return sum(self.counts[number] for number in self._holders(piece) if self._saved(number, piece) > 0)

    def _runs(self, word: str) -> Iterator[str]:
        """Every run of neighbouring pieces, and characters that are none."""
        ends = self._ends(word)
        path = [*_path(ends), len(word)]
        for k, i in enumerate(path[:-1]):
            for e in path[k + 1 + (ends[i] > i) :]:
                if e - i <= PIECE:
                    yield _named(word, i, e)

    def _holders(self, piece: str) -> Iterator[int]:
        """The numbers of the words that hold a piece, at their beginning or inside, as it wants to stand."""
        body = piece.removeprefix(INSIDE)
        inside = piece != body
        wanted, at = body if inside else "\n" + body, -1
        while (at := self.text.find(wanted, at + 1)) >= 0:
            number = bisect_right(self.starts, at + (not inside)) - 1
            if not inside or at > self.starts[number]:
                yield number
                at = self.starts[number + 1] - 2  # the word's last character: the next word may begin with the piece


class Merged:
    """Words that merges put together from their characters, in the order of the merges: BPE.

    New merges come behind all others, so each makes one piece of a pair wherever the pair is left: its gain is how often.
    """

    def __init__(self, pieces: Iterable[str], cuts: Iterable[tuple[Sequence[str], int]], fixed: set[str]) -> None:
        """`fixed` are the pieces that join no other, such as the unknown one."""
        self.known, self.fixed = set(pieces), fixed
        split = [(list(cut), count) for cut, count in cuts if len(cut) > 1]
        self.cuts, self.counts = [cut for cut, _ in split], [count for _, count in split]
        self.ranking: Ranking[Pair] = Ranking()
        self.holders: dict[Pair, set[int]] = defaultdict(set)
        for number in range(len(self.cuts)):
            self._count(number, 1)

    def best(self, least: int) -> tuple[Pair, int] | None:
        while (best := self.ranking.best()) is not None and joined(best[0]) in self.known:
            self.ranking.remove(best[0])  # another pair spelled it before
        return best if best is not None and best[1] >= least else None

    def take(self, pair: Pair) -> None:
        for number in sorted(self.holders.pop(pair)):
            self._count(number, -1)
            self.cuts[number] = _merged(self.cuts[number], pair)
            self._count(number, 1)
        self.known.add(joined(pair))
        self.ranking.remove(pair)

    def _count(self, number: int, sign: int) -> None:
        for pair, times in _pairs(self.cuts[number]).items():
            if not self.fixed.intersection(pair) and joined(pair) not in self.known:
                self.ranking.change(pair, sign * times * self.counts[number])
                self.holders[pair].add(number)


def joined(pair: Pair) -> str:
    return pair[0] + pair[1].removeprefix(INSIDE)


def _named(word: str, begin: int, end: int) -> str:
    return INSIDE + word[begin:end] if begin else word[:end]


def _path(ends: list[int]) -> Iterator[int]:
    """Where the pieces of a word begin; a character that nothing spells stands for itself."""
    i = 0
    while i < len(ends):
        yield i
        i = max(ends[i], i + 1)


def _tokens(word: str, ends: list[int], body: str = "", inside: bool = False) -> int:
    """How many pieces the longest matches make of a word, if `body` is one more that may be matched."""
    i = pieces = 0
    while i < len(word):
        end = ends[i]
        if body and (i > 0) == inside and word.startswith(body, i):
            end = max(end, i + len(body))
        if end == i:
            return len(word) + 1
        i, pieces = end, pieces + 1
    return pieces


def _merged(cut: list[str], pair: Pair) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(cut):
        hit = tuple(cut[at : at + 2]) == pair
        out.append(joined(pair) if hit else cut[at])
        at += 1 + hit
    return out


def _pairs(cut: Sequence[str]) -> Counter[Pair]:
    """Neighbours, and how often each could be merged: of overlapping pairs of one piece, the first."""
    found: Counter[Pair] = Counter()
    last = (-2, ("", ""))
    for at, pair in enumerate(pairwise(cut)):
        if pair[0] == pair[1] and last == (at - 1, pair):
            continue
        found[pair] += 1
        last = at, pair
    return found
