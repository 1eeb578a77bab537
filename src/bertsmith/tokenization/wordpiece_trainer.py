"""WordPiece by its own rule: merge the pair of pieces that raises the likelihood of the corpus most, again and again.

The corpus is every distinct word with its count, cut into pieces drawn independently of one another, so its likelihood
follows from how often each piece stands in it (Schuster and Nakajima 2012; Wu et al. 2016, section 4.1).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Score = Literal["gain", "ratio"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Pair = tuple[int, int, Ints]  # its key (left piece << 32 | right piece), how often it occurs, the words that hold it

INSIDE = "##"  # before a piece that does not begin its word


def forms(word: str) -> list[str]:
    """The characters of a word as pieces: `cat` is c, ##a, ##t."""
    return [word[0], *(INSIDE + character for character in word[1:])]


def learn(
    counts: Sequence[tuple[str, int]],
    room: int,
    *,
    least: int = 2,
    score: Score = "gain",
    progress: Callable[[int, int], None] = lambda done, room: None,
) -> list[str]:
    """At most `room` pieces in the order they were learnt: all characters (sorted) first, then one a merge.

    There are fewer when no pair occurs `least` times any more or, by `gain`, when no merge would raise the likelihood.
    A pair that spells a piece which exists already is not merged. Pairs of one piece do not overlap: `aaa` holds `aa`
    once. Of equally good pairs the first by spelling is merged: equal counts give equal pieces.
    """
    pieces = sorted({form for word, _ in counts for form in forms(word)})
    known = set(pieces)
    words = _Words(counts, pieces)
    pairs = _Pairs(words.pieces(max(room, len(pieces))), score, least)
    pairs.add(words.pairs())
    while len(pieces) < room and (best := pairs.best(pieces)) is not None:
        left, right = pairs.ends(best)
        spelled = pieces[left] + pieces[right].removeprefix(INSIDE)
        if spelled in known:
            pairs.remove(best)
            continue
        changed, born = words.merge(pairs.holders[best], left, right, len(pieces))
        pairs.merged(best, len(pieces), changed, born)
        pieces.append(spelled)
        known.add(spelled)
        progress(len(pieces), room)
    return pieces


class _Words:
    """Each distinct word as ids of pieces, all in one array: word w is `ids[start[w] : start[w] + length[w]]`."""

    def __init__(self, counts: Sequence[tuple[str, int]], pieces: Sequence[str]) -> None:
        index = {piece: number for number, piece in enumerate(pieces)}
        self.length = np.array([len(word) for word, _ in counts], np.int64)
        self.start = np.cumsum(self.length) - self.length
        flat = (index[form] for word, _ in counts for form in forms(word))
        self.ids = np.fromiter(flat, np.int64, int(self.length.sum()))
        self.count = np.array([count for _, count in counts], np.int64)

    def pieces(self, room: int) -> Ints:
        """How often each piece occurs, with zeros for the pieces to come."""
        counted = np.zeros(room, np.int64)
        np.add.at(counted, self.ids, np.repeat(self.count, self.length))
        return counted

    def pairs(self) -> Iterator[Pair]:
        keys, holders = _adjacent(self.ids, np.repeat(np.arange(len(self.length)), self.length))
        return _grouped(keys, self.count[holders], holders)

    def merge(self, words: Ints, left: int, right: int, new: int) -> tuple[list[Pair], list[Pair]]:
        """Make one piece of each such pair in these words.

        Returns the older pairs whose number changed, by how much, and the pairs that were born with the new piece.
        """
        place, owner = self._places(words)
        before = self.ids[place]
        hit = (before[:-1] == left) & (before[1:] == right) & (owner[:-1] == owner[1:])
        if left == right:
            hit[_overlapping(hit)] = False
        after, kept = before.copy(), np.ones(len(before), bool)
        after[:-1][hit], kept[1:] = new, ~hit
        after, then = after[kept], owner[kept]
        self.length[words] = np.bincount(then, minlength=len(words))
        self.ids[self._places(words)[0]] = after
        (lost, losers), (won, winners) = _adjacent(before, owner), _adjacent(after, then)
        count, born = self.count[words], _has(won, new)
        gone, stays = _has(lost, left) | _has(lost, right), (_has(won, left) | _has(won, right)) & ~born
        holders = np.concatenate([losers[gone], winners[stays]])
        change = np.concatenate([-count[losers[gone]], count[winners[stays]]])
        changed = _grouped(np.concatenate([lost[gone], won[stays]]), change, holders)
        return list(changed), list(_grouped(won[born], count[winners[born]], words[winners[born]]))

    def _places(self, words: Ints) -> tuple[Ints, Ints]:
        """Where the pieces of these words lie, one word after another, and to which of the words each belongs."""
        length = self.length[words]
        ends = np.cumsum(length)
        owner = np.repeat(np.arange(len(words)), length)
        return np.arange(len(owner)) + (self.start[words] - ends + length)[owner], owner


class _Pairs:
    """The pairs that may be merged: those that occur at least so often, each with its score.

    A pair is born with the younger of its two pieces; from then on its number only falls, so once out it stays out.
    """

    def __init__(self, pieces: Ints, score: Score, least: int) -> None:
        self.pieces, self.total, self.least = pieces, int(pieces.sum()), least
        self.score_of, self.floor = _RULES[score]
        self.slot: dict[int, int] = {}
        self.holders: list[Ints] = []
        self.left, self.right = np.zeros(1024, np.int32), np.zeros(1024, np.int32)
        self.count, self.score = np.zeros(1024, np.int64), np.zeros(1024, np.float32)

    def ends(self, pair: int) -> tuple[int, int]:
        return int(self.left[pair]), int(self.right[pair])

    def best(self, names: Sequence[str]) -> int | None:
        """The pair to merge, if one is worth it.

        A score that is not fresh can only be too high: each merge leaves fewer pieces in all, and each gain falls with
        that. So the best is among the pairs whose score, fresh or not, reaches the fresh score of any one of them.
        """
        if not self.slot:
            return None
        score = self.score[: len(self.holders)]
        top = int(score.argmax())
        self._refresh(np.array([top]))
        rivals = np.flatnonzero(score >= score[top] - abs(score[top]) * np.float32(1e-6))  # scores are rounded
        self._refresh(rivals)
        highest = score[rivals].max()
        if highest <= self.floor:
            return None
        equals = rivals[score[rivals] == highest].tolist()
        return min(equals, key=lambda pair: tuple(names[end] for end in self.ends(pair)))

    def add(self, born: Iterable[Pair]) -> None:
        first = len(self.holders)
        for key, count, holders in born:
            if count >= self.least:
                self._append(key, count, holders)
        self._refresh(np.arange(first, len(self.holders)))

    def merged(self, pair: int, new: int, changed: list[Pair], born: list[Pair]) -> None:
        """Follow a merge: new numbers of pieces and pairs, and new scores wherever a number changed."""
        (left, right), count = self.ends(pair), int(self.count[pair])
        self.pieces[new] = count
        self.pieces[left] -= count
        self.pieces[right] -= count
        self.total -= count
        for key, change, _ in changed:
            slot = self.slot.get(key)
            if slot is not None:
                self.count[slot] += change
                if self.count[slot] < self.least:
                    self.remove(slot)
        lefts, rights = self.left[: len(self.holders)], self.right[: len(self.holders)]
        touched = np.flatnonzero((lefts == left) | (lefts == right) | (rights == left) | (rights == right))
        self._refresh(touched[self.count[touched] > 0])
        if 2 * len(self.slot) < len(self.holders):
            self._compact()
        self.add(born)

    def remove(self, pair: int) -> None:
        left, right = self.ends(pair)
        del self.slot[left << 32 | right]
        self.holders[pair] = _NONE
        self.count[pair], self.score[pair] = 0, -np.inf

    def _append(self, key: int, count: int, holders: Ints) -> None:
        here = len(self.holders)
        if here == len(self.left):
            self._map(lambda each: np.concatenate([each, np.zeros_like(each)]))
        self.left[here], self.right[here], self.count[here] = key >> 32, key & 0xFFFFFFFF, count
        self.slot[key] = here
        self.holders.append(holders[np.diff(holders, prepend=-1) != 0])  # a word once, however often it holds the pair

    def _refresh(self, pairs: Ints) -> None:
        left, right = self.left[pairs], self.right[pairs]
        self.score[pairs] = self.score_of(self.count[pairs], self.pieces[left], self.pieces[right], left == right, self.total)

    def _compact(self) -> None:
        alive = np.flatnonzero(self.count[: len(self.holders)] > 0)
        spare = np.zeros(1024 + len(alive), np.int64)
        self._map(lambda each: np.concatenate([each[alive], spare.astype(each.dtype)]))
        self.holders = [self.holders[slot] for slot in alive.tolist()]
        self.slot = {left << 32 | right: slot for slot, (left, right) in enumerate(map(self.ends, range(len(alive))))}

    def _map(self, change: Callable[[NDArray], NDArray]) -> None:
        self.left, self.right = change(self.left), change(self.right)
        self.count, self.score = change(self.count), change(self.score)


_NONE = np.zeros(0, np.int64)


def _adjacent(ids: Ints, owner: Ints) -> tuple[Ints, Ints]:
    """Keys of neighbouring pieces within a word, and whose they are; of overlapping pairs of one piece, the first."""
    together, equal = owner[:-1] == owner[1:], ids[:-1] == ids[1:]
    if equal.any():
        together[_overlapping(together & equal)] = False
    return (ids[:-1] << 32 | ids[1:])[together], owner[:-1][together]


def _overlapping(equal: NDArray[np.bool_]) -> Ints:
    """Every second place of each run of true: there a pair would take the piece that the pair before it has."""
    place = np.flatnonzero(equal)
    begins = np.diff(place, prepend=-2) != 1
    start = np.maximum.accumulate(np.where(begins, place, 0))
    return place[(place - start) % 2 == 1]


def _has(keys: Ints, piece: int) -> NDArray[np.bool_]:
    return (keys >> 32 == piece) | (keys & 0xFFFFFFFF == piece)


def _grouped(keys: Ints, counts: Ints, holders: Ints) -> Iterator[Pair]:
    """Each key once, with the sum of its counts and its holders."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    keys, holders = keys[order], holders[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1) != 0)
    sums = np.add.reduceat(counts[order], first).tolist()
    begins = first.tolist()
    for key, count, begin, end in zip(keys[first].tolist(), sums, begins, [*begins[1:], len(keys)], strict=True):
        yield key, count, holders[begin:end]


def _ratio(count: Ints, left: Ints, right: Ints, same: NDArray[np.bool_], total: int) -> Floats:
    return count / (left.astype(np.float64) * right)


def _gain(count: Ints, left: Ints, right: Ints, same: NDArray[np.bool_], total: int) -> Floats:
    """How much the log-likelihood, sum of c log(c / total) over the pieces, grows when the pair is merged everywhere.

    That is count times the pair's mutual information, corrected for what the merge takes from its pieces and the total:
    written so, nothing large is subtracted from anything large.
    """
    information = count * np.log(count / (left.astype(np.float64) * right) * total)
    taken = _left_over(left, np.where(same, 2 * count, count)) + np.where(same, 0, _left_over(right, count))
    return information + taken - _left_over(total, count)


def _left_over(number: Ints | int, taken: Ints) -> Floats:
    share = np.minimum(taken / number, 1 - 1e-16)  # all of them taken leaves 0 times any finite logarithm
    return np.asarray((number - taken) * np.log1p(-share))


# Scores are kept in single precision: sums that are equal but for their rounding are ties, on every machine.
_RULES: dict[Score, tuple[Callable[[Ints, Ints, Ints, NDArray[np.bool_], int], Floats], float]] = {
    "gain": (_gain, 1e-6),  # no more than rounding: not a gain
    "ratio": (_ratio, 0.0),
}
