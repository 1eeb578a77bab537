"""WordPiece by its own rule: merge the pair of pieces that raises the likelihood of the corpus most, again and again.

The corpus is every distinct word with its count, cut into pieces drawn independently of one another, so its likelihood
follows from how often each piece stands in it (Schuster and Nakajima 2012; Wu et al. 2016, section 4.1).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MergeScore = Literal["gain", "ratio"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
PairCount = tuple[int, int, Ints]  # its key (left piece << 32 | right piece), how often it occurs, the words that hold it

CONTINUING_SUBWORD_PREFIX = "##"  # before a piece that does not begin its word


def character_tokens(word: str) -> list[str]:
    """The characters of a word as pieces: `cat` is c, ##a, ##t."""
    return [word[0], *(CONTINUING_SUBWORD_PREFIX + character for character in word[1:])]


def learn_wordpieces(
    counts: Sequence[tuple[str, int]],
    max_tokens: int,
    *,
    min_frequency: int = 2,
    score: MergeScore = "gain",
    progress: Callable[[int, int], None] = lambda done, room: None,
) -> list[str]:
    """At most `room` pieces in the order they were learnt: all characters (sorted) first, then one a merge.

    There are fewer when no pair occurs `least` times any more or, by `gain`, when no merge would raise the likelihood.
    A pair that spells a piece which exists already is not merged. Pairs of one piece do not overlap: `aaa` holds `aa`
    once. Of equally good pairs the first by spelling is merged: equal counts give equal pieces.
    """
    pieces = sorted({form for word, _ in counts for form in character_tokens(word)})
    known = set(pieces)
    words = _TokenizedWords(counts, pieces)
    pairs = _MergeCandidates(words.count_tokens(max(max_tokens, len(pieces))), score, min_frequency)
    pairs.add(words.count_pairs())
    while len(pieces) < max_tokens and (best := pairs.best(pieces)) is not None:
        left, right = pairs.token_pair(best)
        spelled = pieces[left] + pieces[right].removeprefix(CONTINUING_SUBWORD_PREFIX)
        if spelled in known:
            pairs.remove(best)
            continue
        changed, born = words.merge(pairs.word_ids[best], left, right, len(pieces))
        pairs.apply_merge(best, len(pieces), changed, born)
        pieces.append(spelled)
        known.add(spelled)
        progress(len(pieces), max_tokens)
    return pieces


class _TokenizedWords:
    """Each distinct word as ids of pieces, all in one array: word w is `ids[start[w] : start[w] + length[w]]`."""

    def __init__(self, counts: Sequence[tuple[str, int]], tokens: Sequence[str]) -> None:
        index = {piece: number for number, piece in enumerate(tokens)}
        self.lengths = np.array([len(word) for word, _ in counts], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        flat = (index[form] for word, _ in counts for form in character_tokens(word))
        self.token_ids = np.fromiter(flat, np.int64, int(self.lengths.sum()))
        self.counts = np.array([count for _, count in counts], np.int64)

    def count_tokens(self, size: int) -> Ints:
        """How often each piece occurs, with zeros for the pieces to come."""
        counted = np.zeros(size, np.int64)
        np.add.at(counted, self.token_ids, np.repeat(self.counts, self.lengths))
        return counted

    def count_pairs(self) -> Iterator[PairCount]:
        keys, holders = _adjacent_pairs(self.token_ids, np.repeat(np.arange(len(self.lengths)), self.lengths))
        return _group_pairs(keys, self.counts[holders], holders)

    def merge(self, word_ids: Ints, left: int, right: int, new_id: int) -> tuple[list[PairCount], list[PairCount]]:
        """Make one piece of each such pair in these words.

        Returns the older pairs whose number changed, by how much, and the pairs that were born with the new piece.
        """
        place, owner = self._positions(word_ids)
        before = self.token_ids[place]
        hit = (before[:-1] == left) & (before[1:] == right) & (owner[:-1] == owner[1:])
        if left == right:
            hit[_overlapping_pairs(hit)] = False
        after, kept = before.copy(), np.ones(len(before), bool)
        after[:-1][hit], kept[1:] = new_id, ~hit
        after, then = after[kept], owner[kept]
        self.lengths[word_ids] = np.bincount(then, minlength=len(word_ids))
        self.token_ids[self._positions(word_ids)[0]] = after
        (lost, losers), (won, winners) = _adjacent_pairs(before, owner), _adjacent_pairs(after, then)
        count, born = self.counts[word_ids], _contains_token(won, new_id)
        gone, stays = (
            _contains_token(lost, left) | _contains_token(lost, right),
            (_contains_token(won, left) | _contains_token(won, right)) & ~born,
        )
        holders = np.concatenate([losers[gone], winners[stays]])
        change = np.concatenate([-count[losers[gone]], count[winners[stays]]])
        changed = _group_pairs(np.concatenate([lost[gone], won[stays]]), change, holders)
        return list(changed), list(_group_pairs(won[born], count[winners[born]], word_ids[winners[born]]))

    def _positions(self, word_ids: Ints) -> tuple[Ints, Ints]:
        """Where the pieces of these words lie, one word after another, and to which of the words each belongs."""
        length = self.lengths[word_ids]
        ends = np.cumsum(length)
        owner = np.repeat(np.arange(len(word_ids)), length)
        return np.arange(len(owner)) + (self.starts[word_ids] - ends + length)[owner], owner


class _MergeCandidates:
    """The pairs that may be merged: those that occur at least so often, each with its score.

    A pair is born with the younger of its two pieces; from then on its number only falls, so once out it stays out.
    """

    def __init__(self, token_counts: Ints, score: MergeScore, min_frequency: int) -> None:
        self.token_counts, self.total_tokens, self.min_frequency = token_counts, int(token_counts.sum()), min_frequency
        self.score_function, self.min_score = _SCORE_FUNCTIONS[score]
        self.key_to_slot: dict[int, int] = {}
        self.word_ids: list[Ints] = []
        self.left, self.right = np.zeros(1024, np.int32), np.zeros(1024, np.int32)
        self.counts, self.scores = np.zeros(1024, np.int64), np.zeros(1024, np.float32)

    def token_pair(self, pair: int) -> tuple[int, int]:
        return int(self.left[pair]), int(self.right[pair])

    def best(self, tokens: Sequence[str]) -> int | None:
        """The pair to merge, if one is worth it.

        A score that is not fresh can only be too high: each merge leaves fewer pieces in all, and each gain falls with
        that. So the best is among the pairs whose score, fresh or not, reaches the fresh score of any one of them.
        """
        if not self.key_to_slot:
            return None
        score = self.scores[: len(self.word_ids)]
        top = int(score.argmax())
        self._update_scores(np.array([top]))
        rivals = np.flatnonzero(score >= score[top] - abs(score[top]) * np.float32(1e-6))  # scores are rounded
        self._update_scores(rivals)
        highest = score[rivals].max()
        if highest <= self.min_score:
            return None
        equals = rivals[score[rivals] == highest].tolist()
        return min(equals, key=lambda pair: tuple(tokens[end] for end in self.token_pair(pair)))

    def add(self, new_pairs: Iterable[PairCount]) -> None:
        first = len(self.word_ids)
        for key, count, holders in new_pairs:
            if count >= self.min_frequency:
                self._append(key, count, holders)
        self._update_scores(np.arange(first, len(self.word_ids)))

    def apply_merge(self, pair: int, new_id: int, changed_pairs: list[PairCount], new_pairs: list[PairCount]) -> None:
        """Follow a merge: new numbers of pieces and pairs, and new scores wherever a number changed."""
        (left, right), count = self.token_pair(pair), int(self.counts[pair])
        self.token_counts[new_id] = count
        self.token_counts[left] -= count
        self.token_counts[right] -= count
        self.total_tokens -= count
        for key, change, _ in changed_pairs:
            slot = self.key_to_slot.get(key)
            if slot is not None:
                self.counts[slot] += change
                if self.counts[slot] < self.min_frequency:
                    self.remove(slot)
        lefts, rights = self.left[: len(self.word_ids)], self.right[: len(self.word_ids)]
        touched = np.flatnonzero((lefts == left) | (lefts == right) | (rights == left) | (rights == right))
        self._update_scores(touched[self.counts[touched] > 0])
        if 2 * len(self.key_to_slot) < len(self.word_ids):
            self._compact()
        self.add(new_pairs)

    def remove(self, pair: int) -> None:
        left, right = self.token_pair(pair)
        del self.key_to_slot[left << 32 | right]
        self.word_ids[pair] = _NO_WORDS
        self.counts[pair], self.scores[pair] = 0, -np.inf

    def _append(self, key: int, count: int, word_ids: Ints) -> None:
        here = len(self.word_ids)
        if here == len(self.left):
            self._map_arrays(lambda each: np.concatenate([each, np.zeros_like(each)]))
        self.left[here], self.right[here], self.counts[here] = key >> 32, key & 0xFFFFFFFF, count
        self.key_to_slot[key] = here
        self.word_ids.append(word_ids[np.diff(word_ids, prepend=-1) != 0])  # a word once, however often it holds the pair

    def _update_scores(self, pairs: Ints) -> None:
        left, right = self.left[pairs], self.right[pairs]
        self.scores[pairs] = self.score_function(
            self.counts[pairs], self.token_counts[left], self.token_counts[right], left == right, self.total_tokens
        )

    def _compact(self) -> None:
        alive = np.flatnonzero(self.counts[: len(self.word_ids)] > 0)
        spare = np.zeros(1024 + len(alive), np.int64)
        self._map_arrays(lambda each: np.concatenate([each[alive], spare.astype(each.dtype)]))
        self.word_ids = [self.word_ids[slot] for slot in alive.tolist()]
        self.key_to_slot = {
            left << 32 | right: slot for slot, (left, right) in enumerate(map(self.token_pair, range(len(alive))))
        }

    def _map_arrays(self, transform: Callable[[NDArray], NDArray]) -> None:
        self.left, self.right = transform(self.left), transform(self.right)
        self.counts, self.scores = transform(self.counts), transform(self.scores)


_NO_WORDS = np.zeros(0, np.int64)


def _adjacent_pairs(ids: Ints, word_ids: Ints) -> tuple[Ints, Ints]:
    """Keys of neighbouring pieces within a word, and whose they are; of overlapping pairs of one piece, the first."""
    together, equal = word_ids[:-1] == word_ids[1:], ids[:-1] == ids[1:]
    if equal.any():
        together[_overlapping_pairs(together & equal)] = False
    return (ids[:-1] << 32 | ids[1:])[together], word_ids[:-1][together]


def _overlapping_pairs(is_pair: NDArray[np.bool_]) -> Ints:
    """Every second place of each run of true: there a pair would take the piece that the pair before it has."""
    place = np.flatnonzero(is_pair)
    begins = np.diff(place, prepend=-2) != 1
    start = np.maximum.accumulate(np.where(begins, place, 0))
    return place[(place - start) % 2 == 1]


def _contains_token(keys: Ints, token_id: int) -> NDArray[np.bool_]:
    return (keys >> 32 == token_id) | (keys & 0xFFFFFFFF == token_id)


def _group_pairs(keys: Ints, counts: Ints, word_ids: Ints) -> Iterator[PairCount]:
    """Each key once, with the sum of its counts and its holders."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    keys, word_ids = keys[order], word_ids[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1) != 0)
    sums = np.add.reduceat(counts[order], first).tolist()
    begins = first.tolist()
    for key, count, begin, end in zip(keys[first].tolist(), sums, begins, [*begins[1:], len(keys)], strict=True):
        yield key, count, word_ids[begin:end]


def _ratio_score(count: Ints, left: Ints, right: Ints, same: NDArray[np.bool_], total: int) -> Floats:
    return count / (left.astype(np.float64) * right)


def _gain_score(count: Ints, left: Ints, right: Ints, same: NDArray[np.bool_], total: int) -> Floats:
    """How much the log-likelihood, sum of c log(c / total) over the pieces, grows when the pair is merged everywhere.

    That is count times the pair's mutual information, corrected for what the merge takes from its pieces and the total:
    written so, nothing large is subtracted from anything large.
    """
    information = count * np.log(count / (left.astype(np.float64) * right) * total)
    taken = _remaining_log_term(left, np.where(same, 2 * count, count)) + np.where(same, 0, _remaining_log_term(right, count))
    return information + taken - _remaining_log_term(total, count)


def _remaining_log_term(total: Ints | int, removed: Ints) -> Floats:
    share = np.minimum(removed / total, 1 - 1e-16)  # all of them taken leaves 0 times any finite logarithm
    return np.asarray((total - removed) * np.log1p(-share))


# Scores are kept in single precision: sums that are equal but for their rounding are ties, on every machine.
_SCORE_FUNCTIONS: dict[MergeScore, tuple[Callable[[Ints, Ints, Ints, NDArray[np.bool_], int], Floats], float]] = {
    "gain": (_gain_score, 1e-6),  # no more than rounding: not a gain
    "ratio": (_ratio_score, 0.0),
}
