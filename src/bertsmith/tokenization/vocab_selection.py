"""Greedy selection of new vocabulary entries by gain: the number of tokens each saves on a text when it is added.

`WordPieceSelector` selects tokens for longest-match-first WordPiece, `BpeSelector` selects merges for BPE.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

from .wordpiece_trainer import CONTINUING_SUBWORD_PREFIX

Key = TypeVar("Key", bound=Any)
Pair = tuple[str, str]

MAX_TOKEN_CHARS = 32  # of a new token: longer ones are rarely words and have too many possible splits


class TokenSelector(Protocol):
    def best(self, min_frequency: int) -> tuple[Any, int] | None: ...

    def select(self, key: Any) -> None: ...


def select_tokens(
    selector: TokenSelector, max_tokens: int, min_frequency: int, progress: Callable[[int, int], None]
) -> list[tuple[Any, int]]:
    """At most `max_tokens` (token or merge, gain), best first; fewer if no other with `min_frequency` uses has a gain."""
    selected: list[tuple[Any, int]] = []
    while len(selected) < max_tokens and (best := selector.best(min_frequency)) is not None:
        selector.select(best[0])
        selected.append(best)
        progress(len(selected), max_tokens)
    return selected


class GainRanking(Generic[Key]):
    """Priority queue with updates: the key with the highest gain, ties in alphabetical order."""

    def __init__(self) -> None:
        self.gains: dict[Key, int] = defaultdict(int)
        self.changed: set[Key] = set()
        self.heap: list[tuple[int, Key]] = []

    def update(self, key: Key, delta: int) -> None:
        self.gains[key] += delta
        self.changed.add(key)

    def remove(self, key: Key) -> None:
        self.gains.pop(key, None)
        self.changed.discard(key)

    def best(self) -> tuple[Key, int] | None:
        for key in self.changed:
            if self.gains[key] > 0:
                heappush(self.heap, (-self.gains[key], key))
        self.changed.clear()
        while self.heap and self.gains.get(self.heap[0][1]) != -self.heap[0][0]:
            heappop(self.heap)  # stale entry: its gain has changed since
        return (self.heap[0][1], -self.heap[0][0]) if self.heap else None


class WordPieceSelector:
    """Selects tokens for WordPiece, which splits words by longest match from the left.

    Candidates are concatenations of adjacent tokens of a word, up to the whole word, and characters outside the vocabulary.
    A new token may also change the split of a word that contains it across token boundaries: this effect is counted, even
    if negative. A word that cannot be tokenized counts as len(word) + 1 tokens.
    """

    def __init__(self, vocab: Iterable[str], counts: Iterable[tuple[str, int]]) -> None:
        self.vocab: tuple[set[str], set[str]] = set(), set()  # word-initial tokens, continuations
        self.max_token_length = 0
        for token in vocab:
            self._add_to_vocab(token)
        split_words = [(word, count) for word, count in counts if self._longest_matches(word)[0] < len(word)]
        self.words, self.counts = [word for word, _ in split_words], [count for _, count in split_words]
        self.joined_words = "\n" + "".join(f"{word}\n" for word in self.words)
        self.word_offsets = [1]
        for word in self.words:
            self.word_offsets.append(self.word_offsets[-1] + len(word) + 1)
        self.ranking: GainRanking[str] = GainRanking()
        self._init_ranking()

    def best(self, min_frequency: int) -> tuple[str, int] | None:
        while (best := self.ranking.best()) is not None and self._count_uses(best[0]) < min_frequency:
            self.ranking.remove(best[0])  # too rare to learn an embedding for
        return best

    def select(self, token: str) -> None:
        """Add a token and update the gains of all candidates in the words that contain it: subtract the old, add the new."""
        word_indices = list(self._words_containing(token))
        for word_index in word_indices:
            for candidate, saved in self._savings_per_candidate(self.words[word_index]):
                self.ranking.update(candidate, -saved * self.counts[word_index])
        self._add_to_vocab(token)
        self.ranking.remove(token)
        new_candidates = {
            new_candidate
            for word_index in word_indices
            for new_candidate in self._candidates(self.words[word_index])
            if new_candidate not in self.ranking.gains
        }
        for word_index in word_indices:
            for candidate, saved in self._savings_per_candidate(self.words[word_index]):
                self.ranking.update(candidate, saved * self.counts[word_index])
        for new_candidate in sorted(new_candidates):
            self.ranking.update(
                new_candidate,
                sum(self._tokens_saved(word_index, new_candidate) for word_index in self._words_containing(new_candidate)),
            )

    def _init_ranking(self) -> None:
        for word in self.words:
            self.ranking.gains |= dict.fromkeys(self._candidates(word), 0)
        for word, count in zip(self.words, self.counts, strict=True):
            for candidate, saved in self._savings_per_candidate(word):
                self.ranking.update(candidate, saved * count)

    def _add_to_vocab(self, token: str) -> None:
        body = token.removeprefix(CONTINUING_SUBWORD_PREFIX)
        if body:
            self.vocab[token != body].add(body)
            self.max_token_length = max(self.max_token_length, len(body))

    def _longest_matches(self, word: str) -> list[int]:
        """For each position of a word, the end of the longest token that starts there; the position itself if there is none."""
        size, ends = len(word), []
        for start in range(size):
            tokens, max_end = self.vocab[start > 0], min(size, start + self.max_token_length)
            ends.append(next((end for end in range(max_end, start, -1) if word[start:end] in tokens), start))
        return ends

    def _savings_per_candidate(self, word: str) -> Iterator[tuple[str, int]]:
        """Yield (candidate, tokens saved in this word) for each ranked candidate that changes the word's split."""
        ends = self._longest_matches(word)
        num_tokens, seen = _count_tokens(word, ends), set()
        for start in _match_starts(ends):
            for end in range(ends[start] + 1, min(len(word), start + MAX_TOKEN_CHARS) + 1):
                candidate = _candidate_token(word, start, end)
                if candidate in self.ranking.gains and candidate not in seen:
                    seen.add(candidate)
                    yield candidate, num_tokens - _count_tokens(word, ends, word[start:end], start > 0)
            if ends[start] == start:
                return  # after an unknown character, no token changes the count

    def _tokens_saved(self, word_index: int, token: str) -> int:
        word, body = self.words[word_index], token.removeprefix(CONTINUING_SUBWORD_PREFIX)
        ends = self._longest_matches(word)
        return self.counts[word_index] * (_count_tokens(word, ends) - _count_tokens(word, ends, body, token != body))

    def _count_uses(self, token: str) -> int:
        return sum(
            self.counts[word_index] for word_index in self._words_containing(token) if self._tokens_saved(word_index, token) > 0
        )

    def _candidates(self, word: str) -> Iterator[str]:
        """Concatenations of adjacent tokens, and characters outside the vocabulary."""
        ends = self._longest_matches(word)
        boundaries = [*_match_starts(ends), len(word)]
        for k, start in enumerate(boundaries[:-1]):
            for end in boundaries[k + 1 + (ends[start] > start) :]:
                if end - start <= MAX_TOKEN_CHARS:
                    yield _candidate_token(word, start, end)

    def _words_containing(self, token: str) -> Iterator[int]:
        """Indices of the words that contain a token: at the start, or inside for a continuation."""
        body = token.removeprefix(CONTINUING_SUBWORD_PREFIX)
        is_continuation = token != body
        pattern, position = body if is_continuation else "\n" + body, -1
        while (position := self.joined_words.find(pattern, position + 1)) >= 0:
            word_index = bisect_right(self.word_offsets, position + (not is_continuation)) - 1
            if not is_continuation or position > self.word_offsets[word_index]:
                yield word_index
                # Continue at the word's last character: the next word may begin with the token.
                position = self.word_offsets[word_index + 1] - 2


class BpeSelector:
    """Selects merges for BPE.

    New merges come after all existing ones, so each joins a pair wherever it remains: its gain is the pair's count.
    """

    def __init__(
        self, vocab: Iterable[str], tokenized_words: Iterable[tuple[Sequence[str], int]], unmergeable: set[str]
    ) -> None:
        """`unmergeable` are tokens that are never merged, such as [UNK]."""
        self.vocab, self.unmergeable = set(vocab), unmergeable
        split_words = [(list(tokens), count) for tokens, count in tokenized_words if len(tokens) > 1]
        self.tokenized_words, self.counts = [tokens for tokens, _ in split_words], [count for _, count in split_words]
        self.ranking: GainRanking[Pair] = GainRanking()
        self.words_with_pair: dict[Pair, set[int]] = defaultdict(set)
        for word_index in range(len(self.tokenized_words)):
            self._update_gains(word_index, 1)

    def best(self, min_frequency: int) -> tuple[Pair, int] | None:
        while (best := self.ranking.best()) is not None and merge_pair(best[0]) in self.vocab:
            self.ranking.remove(best[0])  # the same token was made by another pair
        return best if best is not None and best[1] >= min_frequency else None

    def select(self, pair: Pair) -> None:
        for word_index in sorted(self.words_with_pair.pop(pair)):
            self._update_gains(word_index, -1)
            self.tokenized_words[word_index] = _apply_merge(self.tokenized_words[word_index], pair)
            self._update_gains(word_index, 1)
        self.vocab.add(merge_pair(pair))
        self.ranking.remove(pair)

    def _update_gains(self, word_index: int, sign: int) -> None:
        for pair, occurrences in _count_pairs(self.tokenized_words[word_index]).items():
            if not self.unmergeable.intersection(pair) and merge_pair(pair) not in self.vocab:
                self.ranking.update(pair, sign * occurrences * self.counts[word_index])
                self.words_with_pair[pair].add(word_index)


def merge_pair(pair: Pair) -> str:
    return pair[0] + pair[1].removeprefix(CONTINUING_SUBWORD_PREFIX)


def _candidate_token(word: str, start: int, end: int) -> str:
    return CONTINUING_SUBWORD_PREFIX + word[start:end] if start else word[:end]


def _match_starts(match_ends: list[int]) -> Iterator[int]:
    """Start of each token of a word; an unknown character counts as a token."""
    start = 0
    while start < len(match_ends):
        yield start
        start = max(match_ends[start], start + 1)


def _count_tokens(word: str, match_ends: list[int], new_token: str = "", is_continuation: bool = False) -> int:
    """Number of tokens of a word by longest match, if `new_token` (without ##) were in the vocabulary as well."""
    start = num_tokens = 0
    while start < len(word):
        end = match_ends[start]
        if new_token and (start > 0) == is_continuation and word.startswith(new_token, start):
            end = max(end, start + len(new_token))
        if end == start:
            return len(word) + 1
        start, num_tokens = end, num_tokens + 1
    return num_tokens


def _apply_merge(tokens: list[str], pair: Pair) -> list[str]:
    merged: list[str] = []
    position = 0
    while position < len(tokens):
        is_pair = tuple(tokens[position : position + 2]) == pair
        merged.append(merge_pair(pair) if is_pair else tokens[position])
        position += 1 + is_pair
    return merged


def _count_pairs(tokens: Sequence[str]) -> Counter[Pair]:
    """Counts of adjacent pairs without overlap: `a a a` contains `a a` once."""
    counts: Counter[Pair] = Counter()
    last = (-2, ("", ""))
    for position, pair in enumerate(pairwise(tokens)):
        if pair[0] == pair[1] and last == (position - 1, pair):
            continue
        counts[pair] += 1
        last = position, pair
    return counts
