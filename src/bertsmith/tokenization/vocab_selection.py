"""Which pieces shorten the words of a text most: taken one by one, each with its gain at the time it is taken.

A gain is a number of tokens: those that the text has before the piece is there, less those it has with it.
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

MAX_TOKEN_CHARS = 32  # characters of a new piece at most: what is longer is no word, and there are too many ways to cut it


class TokenSelector(Protocol):
    def best(self, min_frequency: int) -> tuple[Any, int] | None: ...

    def select(self, key: Any) -> None: ...


def select_tokens(
    selector: TokenSelector, max_tokens: int, min_frequency: int, progress: Callable[[int, int], None]
) -> list[tuple[Any, int]]:
    """At most `room` pieces and the gain of each; there are fewer when none that occurs `least` times gains any more."""
    found: list[tuple[Any, int]] = []
    while len(found) < max_tokens and (best := selector.best(min_frequency)) is not None:
        selector.select(best[0])
        found.append(best)
        progress(len(found), max_tokens)
    return found


class GainRanking(Generic[Key]):
    """Gains that change, and the best of them; of equal gains, the first by spelling."""

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
            heappop(self.heap)  # its gain was another one then
        return (self.heap[0][1], -self.heap[0][0]) if self.heap else None


class WordPieceSelector:
    """Words that a vocabulary cuts by its longest match, over and over from the left: WordPiece.

    What may become a piece is any run of neighbouring pieces of a word, the whole word among them, and a character that
    no piece spells. A piece may also cut a word anew that holds it across a border: this counts as it comes out, even
    below zero. A word that cannot be spelled counts as one token more than it has characters.
    """

    def __init__(self, vocab: Iterable[str], counts: Iterable[tuple[str, int]]) -> None:
        self.vocab: tuple[set[str], set[str]] = set(), set()  # what begins a word, what stands inside one
        self.max_token_length = 0
        for piece in vocab:
            self._add_to_vocab(piece)
        split = [(word, count) for word, count in counts if self._longest_matches(word)[0] < len(word)]
        self.words, self.counts = [word for word, _ in split], [count for _, count in split]
        self.joined_words = "\n" + "".join(f"{word}\n" for word in self.words)
        self.word_offsets = [1]
        for word in self.words:
            self.word_offsets.append(self.word_offsets[-1] + len(word) + 1)
        self.ranking: GainRanking[str] = GainRanking()
        self._init_ranking()

    def best(self, min_frequency: int) -> tuple[str, int] | None:
        while (best := self.ranking.best()) is not None and self._count_uses(best[0]) < min_frequency:
            self.ranking.remove(best[0])  # long, perhaps, but too rare to learn a row for
        return best

    def select(self, token: str) -> None:
        """Words that hold the piece anywhere give other pieces another gain; what they had gained goes out first."""
        holders = list(self._words_containing(token))
        for number in holders:
            for other, saved in self._savings_per_candidate(self.words[number]):
                self.ranking.update(other, -saved * self.counts[number])
        self._add_to_vocab(token)
        self.ranking.remove(token)
        fresh = {run for number in holders for run in self._candidates(self.words[number]) if run not in self.ranking.gains}
        for number in holders:
            for other, saved in self._savings_per_candidate(self.words[number]):
                self.ranking.update(other, saved * self.counts[number])
        for run in sorted(fresh):
            self.ranking.update(run, sum(self._tokens_saved(number, run) for number in self._words_containing(run)))

    def _init_ranking(self) -> None:
        for word in self.words:
            self.ranking.gains |= dict.fromkeys(self._candidates(word), 0)
        for word, count in zip(self.words, self.counts, strict=True):
            for piece, saved in self._savings_per_candidate(word):
                self.ranking.update(piece, saved * count)

    def _add_to_vocab(self, token: str) -> None:
        body = token.removeprefix(CONTINUING_SUBWORD_PREFIX)
        if body:
            self.vocab[token != body].add(body)
            self.max_token_length = max(self.max_token_length, len(body))

    def _longest_matches(self, word: str) -> list[int]:
        """For each place in a word, where the longest piece from there ends; where none begins, the place itself."""
        size, ends = len(word), []
        for i in range(size):
            known, most = self.vocab[i > 0], min(size, i + self.max_token_length)
            ends.append(next((e for e in range(most, i, -1) if word[i:e] in known), i))
        return ends

    def _savings_per_candidate(self, word: str) -> Iterator[tuple[str, int]]:
        """What each ranked piece that would change the word's cut saves in it."""
        ends = self._longest_matches(word)
        before, seen = _count_tokens(word, ends), set()
        for i in _match_starts(ends):
            for e in range(ends[i] + 1, min(len(word), i + MAX_TOKEN_CHARS) + 1):
                piece = _candidate_token(word, i, e)
                if piece in self.ranking.gains and piece not in seen:
                    seen.add(piece)
                    yield piece, before - _count_tokens(word, ends, word[i:e], i > 0)
            if ends[i] == i:
                return  # behind a character that nothing spells, a piece changes nothing

    def _tokens_saved(self, word_index: int, token: str) -> int:
        word, body = self.words[word_index], token.removeprefix(CONTINUING_SUBWORD_PREFIX)
        ends = self._longest_matches(word)
        return self.counts[word_index] * (_count_tokens(word, ends) - _count_tokens(word, ends, body, token != body))

    def _count_uses(self, token: str) -> int:
        return sum(self.counts[number] for number in self._words_containing(token) if self._tokens_saved(number, token) > 0)

    def _candidates(self, word: str) -> Iterator[str]:
        """Every run of neighbouring pieces, and characters that are none."""
        ends = self._longest_matches(word)
        path = [*_match_starts(ends), len(word)]
        for k, i in enumerate(path[:-1]):
            for e in path[k + 1 + (ends[i] > i) :]:
                if e - i <= MAX_TOKEN_CHARS:
                    yield _candidate_token(word, i, e)

    def _words_containing(self, token: str) -> Iterator[int]:
        """The numbers of the words that hold a piece, at their beginning or inside, as it wants to stand."""
        body = token.removeprefix(CONTINUING_SUBWORD_PREFIX)
        inside = token != body
        wanted, at = body if inside else "\n" + body, -1
        while (at := self.joined_words.find(wanted, at + 1)) >= 0:
            number = bisect_right(self.word_offsets, at + (not inside)) - 1
            if not inside or at > self.word_offsets[number]:
                yield number
                at = self.word_offsets[number + 1] - 2  # the word's last character: the next word may begin with the piece


class BpeSelector:
    """Words that merges put together from their characters, in the order of the merges: BPE.

    New merges come behind all others, so each makes one piece of a pair wherever the pair is left: its gain is how often.
    """

    def __init__(
        self, vocab: Iterable[str], tokenized_words: Iterable[tuple[Sequence[str], int]], unmergeable: set[str]
    ) -> None:
        """`fixed` are the pieces that join no other, such as the unknown one."""
        self.vocab, self.unmergeable = set(vocab), unmergeable
        split = [(list(cut), count) for cut, count in tokenized_words if len(cut) > 1]
        self.tokenized_words, self.counts = [cut for cut, _ in split], [count for _, count in split]
        self.ranking: GainRanking[Pair] = GainRanking()
        self.words_with_pair: dict[Pair, set[int]] = defaultdict(set)
        for number in range(len(self.tokenized_words)):
            self._update_gains(number, 1)

    def best(self, min_frequency: int) -> tuple[Pair, int] | None:
        while (best := self.ranking.best()) is not None and merge_pair(best[0]) in self.vocab:
            self.ranking.remove(best[0])  # another pair spelled it before
        return best if best is not None and best[1] >= min_frequency else None

    def select(self, pair: Pair) -> None:
        for number in sorted(self.words_with_pair.pop(pair)):
            self._update_gains(number, -1)
            self.tokenized_words[number] = _apply_merge(self.tokenized_words[number], pair)
            self._update_gains(number, 1)
        self.vocab.add(merge_pair(pair))
        self.ranking.remove(pair)

    def _update_gains(self, word_index: int, sign: int) -> None:
        for pair, times in _count_pairs(self.tokenized_words[word_index]).items():
            if not self.unmergeable.intersection(pair) and merge_pair(pair) not in self.vocab:
                self.ranking.update(pair, sign * times * self.counts[word_index])
                self.words_with_pair[pair].add(word_index)


def merge_pair(pair: Pair) -> str:
    return pair[0] + pair[1].removeprefix(CONTINUING_SUBWORD_PREFIX)


def _candidate_token(word: str, start: int, end: int) -> str:
    return CONTINUING_SUBWORD_PREFIX + word[start:end] if start else word[:end]


def _match_starts(match_ends: list[int]) -> Iterator[int]:
    """Where the pieces of a word begin; a character that nothing spells stands for itself."""
    i = 0
    while i < len(match_ends):
        yield i
        i = max(match_ends[i], i + 1)


def _count_tokens(word: str, match_ends: list[int], new_token: str = "", is_continuation: bool = False) -> int:
    """How many pieces the longest matches make of a word, if `body` is one more that may be matched."""
    i = pieces = 0
    while i < len(word):
        end = match_ends[i]
        if new_token and (i > 0) == is_continuation and word.startswith(new_token, i):
            end = max(end, i + len(new_token))
        if end == i:
            return len(word) + 1
        i, pieces = end, pieces + 1
    return pieces


def _apply_merge(tokens: list[str], pair: Pair) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(tokens):
        hit = tuple(tokens[at : at + 2]) == pair
        out.append(merge_pair(pair) if hit else tokens[at])
        at += 1 + hit
    return out


def _count_pairs(tokens: Sequence[str]) -> Counter[Pair]:
    """Neighbours, and how often each could be merged: of overlapping pairs of one piece, the first."""
    found: Counter[Pair] = Counter()
    last = (-2, ("", ""))
    for at, pair in enumerate(pairwise(tokens)):
        if pair[0] == pair[1] and last == (at - 1, pair):
            continue
        found[pair] += 1
        last = at, pair
    return found
