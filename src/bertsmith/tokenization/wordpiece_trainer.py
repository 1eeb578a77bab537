"""WordPiece training: repeatedly merge the pair of tokens that increases the corpus likelihood most.

The likelihood is that of a unigram model over tokens, sum of c log(c / total) over token counts c, computed from distinct
words and their counts (Schuster and Nakajima 2012; Wu et al. 2016, section 4.1).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MergeScore = Literal["gain", "ratio"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
PairCount = tuple[int, int, Ints]  # key (left id << 32 | right id), count, indices of the words that contain it

CONTINUING_SUBWORD_PREFIX = "##"  # prefix of tokens that do not begin a word


def character_tokens(word: str) -> list[str]:
    """The characters of a word as tokens: `cat` is c, ##a, ##t."""
    return [word[0], *(CONTINUING_SUBWORD_PREFIX + character for character in word[1:])]


def learn_wordpieces(
    counts: Sequence[tuple[str, int]],
    max_tokens: int,
    *,
    min_frequency: int = 2,
    score: MergeScore = "gain",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """At most `max_tokens` tokens in the order they are learned: all characters (sorted), then one per merge.

    Stops early when no pair occurs `min_frequency` times or, with `gain`, when no merge increases the likelihood.
    A pair whose concatenation is already a token is not merged. Pairs do not overlap: `aaa` holds `aa` once. Ties are
    broken alphabetically, so the result is deterministic.
    """
    tokens = sorted({token for word, _ in counts for token in character_tokens(word)})
    token_set = set(tokens)
    words = _TokenizedWords(counts, tokens)
    candidates = _MergeCandidates(words.count_tokens(max(max_tokens, len(tokens))), score, min_frequency)
    candidates.add(words.count_pairs())
    while len(tokens) < max_tokens and (best := candidates.best(tokens)) is not None:
        left, right = candidates.token_pair(best)
        merged = tokens[left] + tokens[right].removeprefix(CONTINUING_SUBWORD_PREFIX)
        if merged in token_set:
            candidates.remove(best)
            continue
        changed_pairs, new_pairs = words.merge(candidates.word_ids[best], left, right, len(tokens))
        candidates.apply_merge(best, len(tokens), changed_pairs, new_pairs)
        tokens.append(merged)
        token_set.add(merged)
        progress(len(tokens), max_tokens)
    return tokens


class _TokenizedWords:
    """Token ids of all distinct words in one array: word w is `token_ids[starts[w] : starts[w] + lengths[w]]`."""

    def __init__(self, counts: Sequence[tuple[str, int]], tokens: Sequence[str]) -> None:
        token_to_id = {token: token_id for token_id, token in enumerate(tokens)}
        self.lengths = np.array([len(word) for word, _ in counts], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        flat_ids = (token_to_id[char_token] for word, _ in counts for char_token in character_tokens(word))
        self.token_ids = np.fromiter(flat_ids, np.int64, int(self.lengths.sum()))
        self.counts = np.array([count for _, count in counts], np.int64)

    def count_tokens(self, size: int) -> Ints:
        """(size,): count of each token, zero for tokens that do not exist yet."""
        token_counts = np.zeros(size, np.int64)
        np.add.at(token_counts, self.token_ids, np.repeat(self.counts, self.lengths))
        return token_counts

    def count_pairs(self) -> Iterator[PairCount]:
        keys, word_ids = _adjacent_pairs(self.token_ids, np.repeat(np.arange(len(self.lengths)), self.lengths))
        return _group_pairs(keys, self.counts[word_ids], word_ids)

    def merge(self, word_ids: Ints, left: int, right: int, new_id: int) -> tuple[list[PairCount], list[PairCount]]:
        """Replace each (left, right) pair in these words by `new_id`.

        Returns the existing pairs whose count changed, with the change, and the pairs that contain the new token.
        """
        positions, word_index = self._positions(word_ids)
        before = self.token_ids[positions]
        is_match = (before[:-1] == left) & (before[1:] == right) & (word_index[:-1] == word_index[1:])
        if left == right:
            is_match[_overlapping_pairs(is_match)] = False
        after, keep = before.copy(), np.ones(len(before), bool)
        after[:-1][is_match], keep[1:] = new_id, ~is_match
        after, word_index_after = after[keep], word_index[keep]
        self.lengths[word_ids] = np.bincount(word_index_after, minlength=len(word_ids))
        self.token_ids[self._positions(word_ids)[0]] = after
        (pairs_before, words_before), (pairs_after, words_after) = (
            _adjacent_pairs(before, word_index),
            _adjacent_pairs(after, word_index_after),
        )
        count, is_new = self.counts[word_ids], _contains_token(pairs_after, new_id)
        was_touched, is_touched = (
            _contains_token(pairs_before, left) | _contains_token(pairs_before, right),
            (_contains_token(pairs_after, left) | _contains_token(pairs_after, right)) & ~is_new,
        )
        changed_words = np.concatenate([words_before[was_touched], words_after[is_touched]])
        count_delta = np.concatenate([-count[words_before[was_touched]], count[words_after[is_touched]]])
        changed_pairs = _group_pairs(
            np.concatenate([pairs_before[was_touched], pairs_after[is_touched]]), count_delta, changed_words
        )
        return list(changed_pairs), list(
            _group_pairs(pairs_after[is_new], count[words_after[is_new]], word_ids[words_after[is_new]])
        )

    def _positions(self, word_ids: Ints) -> tuple[Ints, Ints]:
        """Positions in `token_ids` of the tokens of these words, concatenated, and for each the index into `word_ids`."""
        lengths = self.lengths[word_ids]
        ends = np.cumsum(lengths)
        word_index = np.repeat(np.arange(len(word_ids)), lengths)
        return np.arange(len(word_index)) + (self.starts[word_ids] - ends + lengths)[word_index], word_index


class _MergeCandidates:
    """Candidate pairs with at least `min_frequency` occurrences, and their scores.

    A pair appears with the newer of its two tokens, and its count only decreases after that: a removed pair never returns.
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
        """Slot of the pair to merge, or None if no score exceeds `min_score`.

        A stale score is an upper bound, since each merge reduces the total number of tokens and with it every gain. So the
        best pair is among those whose (possibly stale) score reaches the updated score of the current maximum.
        """
        if not self.key_to_slot:
            return None
        scores = self.scores[: len(self.word_ids)]
        top = int(scores.argmax())
        self._update_scores(np.array([top]))
        contenders = np.flatnonzero(scores >= scores[top] - abs(scores[top]) * np.float32(1e-6))  # tolerance for rounding
        self._update_scores(contenders)
        best_score = scores[contenders].max()
        if best_score <= self.min_score:
            return None
        ties = contenders[scores[contenders] == best_score].tolist()
        return min(ties, key=lambda pair: tuple(tokens[token_id] for token_id in self.token_pair(pair)))

    def add(self, new_pairs: Iterable[PairCount]) -> None:
        first_new = len(self.word_ids)
        for key, count, word_ids in new_pairs:
            if count >= self.min_frequency:
                self._append(key, count, word_ids)
        self._update_scores(np.arange(first_new, len(self.word_ids)))

    def apply_merge(self, pair: int, new_id: int, changed_pairs: list[PairCount], new_pairs: list[PairCount]) -> None:
        """Update token and pair counts after a merge, and the scores of all affected pairs."""
        (left, right), count = self.token_pair(pair), int(self.counts[pair])
        self.token_counts[new_id] = count
        self.token_counts[left] -= count
        self.token_counts[right] -= count
        self.total_tokens -= count
        for key, delta, _ in changed_pairs:
            slot = self.key_to_slot.get(key)
            if slot is not None:
                self.counts[slot] += delta
                if self.counts[slot] < self.min_frequency:
                    self.remove(slot)
        lefts, rights = self.left[: len(self.word_ids)], self.right[: len(self.word_ids)]
        affected = np.flatnonzero((lefts == left) | (lefts == right) | (rights == left) | (rights == right))
        self._update_scores(affected[self.counts[affected] > 0])
        if 2 * len(self.key_to_slot) < len(self.word_ids):
            self._compact()
        self.add(new_pairs)

    def remove(self, pair: int) -> None:
        left, right = self.token_pair(pair)
        del self.key_to_slot[left << 32 | right]
        self.word_ids[pair] = _NO_WORDS
        self.counts[pair], self.scores[pair] = 0, -np.inf

    def _append(self, key: int, count: int, word_ids: Ints) -> None:
        slot = len(self.word_ids)
        if slot == len(self.left):
            self._map_arrays(lambda array: np.concatenate([array, np.zeros_like(array)]))
        self.left[slot], self.right[slot], self.counts[slot] = key >> 32, key & 0xFFFFFFFF, count
        self.key_to_slot[key] = slot
        self.word_ids.append(word_ids[np.diff(word_ids, prepend=-1) != 0])  # each word once

    def _update_scores(self, pairs: Ints) -> None:
        left, right = self.left[pairs], self.right[pairs]
        self.scores[pairs] = self.score_function(
            self.counts[pairs], self.token_counts[left], self.token_counts[right], left == right, self.total_tokens
        )

    def _compact(self) -> None:
        alive = np.flatnonzero(self.counts[: len(self.word_ids)] > 0)
        padding = np.zeros(1024 + len(alive), np.int64)
        self._map_arrays(lambda array: np.concatenate([array[alive], padding.astype(array.dtype)]))
        self.word_ids = [self.word_ids[slot] for slot in alive.tolist()]
        self.key_to_slot = {
            left << 32 | right: slot for slot, (left, right) in enumerate(map(self.token_pair, range(len(alive))))
        }

    def _map_arrays(self, transform: Callable[[NDArray], NDArray]) -> None:
        self.left, self.right = transform(self.left), transform(self.right)
        self.counts, self.scores = transform(self.counts), transform(self.scores)


_NO_WORDS = np.zeros(0, np.int64)


def _adjacent_pairs(ids: Ints, word_ids: Ints) -> tuple[Ints, Ints]:
    """Keys of adjacent tokens within a word, and their word ids; of overlapping pairs (`a a a`) only the first."""
    same_word, equal = word_ids[:-1] == word_ids[1:], ids[:-1] == ids[1:]
    if equal.any():
        same_word[_overlapping_pairs(same_word & equal)] = False
    return (ids[:-1] << 32 | ids[1:])[same_word], word_ids[:-1][same_word]


def _overlapping_pairs(is_pair: NDArray[np.bool_]) -> Ints:
    """Every second position of each run of True: such a pair overlaps the one before it."""
    positions = np.flatnonzero(is_pair)
    is_run_start = np.diff(positions, prepend=-2) != 1
    run_start = np.maximum.accumulate(np.where(is_run_start, positions, 0))
    return positions[(positions - run_start) % 2 == 1]


def _contains_token(keys: Ints, token_id: int) -> NDArray[np.bool_]:
    return (keys >> 32 == token_id) | (keys & 0xFFFFFFFF == token_id)


def _group_pairs(keys: Ints, counts: Ints, word_ids: Ints) -> Iterator[PairCount]:
    """Yield each distinct key with the sum of its counts and the words that contain it."""
    if not len(keys):
        return
    order = np.argsort(keys, kind="stable")
    keys, word_ids = keys[order], word_ids[order]
    group_starts = np.flatnonzero(np.diff(keys, prepend=-1) != 0)
    sums = np.add.reduceat(counts[order], group_starts).tolist()
    starts = group_starts.tolist()
    for key, count, start, end in zip(keys[group_starts].tolist(), sums, starts, [*starts[1:], len(keys)], strict=True):
        yield key, count, word_ids[start:end]


def _ratio_score(count: Ints, left: Ints, right: Ints, same: NDArray[np.bool_], total: int) -> Floats:
    return count / (left.astype(np.float64) * right)


def _gain_score(count: Ints, left: Ints, right: Ints, same: NDArray[np.bool_], total: int) -> Floats:
    """Change of the log-likelihood, sum of c log(c / total) over tokens, when the pair is merged everywhere.

    Computed as count times the pair's pointwise mutual information plus corrections for the reduced counts of both tokens
    and of the total: this form avoids subtracting large numbers.
    """
    information = count * np.log(count / (left.astype(np.float64) * right) * total)
    remaining = _remaining_log_term(left, np.where(same, 2 * count, count)) + np.where(
        same, 0, _remaining_log_term(right, count)
    )
    return information + remaining - _remaining_log_term(total, count)


def _remaining_log_term(total: Ints | int, removed: Ints) -> Floats:
    """(total - removed) * log((total - removed) / total)."""
    fraction = np.minimum(removed / total, 1 - 1e-16)  # with nothing left the factor is 0: keep the logarithm finite
    return np.asarray((total - removed) * np.log1p(-fraction))


# Scores are stored in float32, so that scores that differ only by float64 rounding are ties on every machine.
_SCORE_FUNCTIONS: dict[MergeScore, tuple[Callable[[Ints, Ints, Ints, NDArray[np.bool_], int], Floats], float]] = {
    "gain": (_gain_score, 1e-6),  # smaller gains are rounding errors
    "ratio": (_ratio_score, 0.0),
}
