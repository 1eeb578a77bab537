"""Beams: the likeliest beginnings of one text, and those that came to an end, each by its length."""

from collections.abc import Sequence
from dataclasses import dataclass, field

NEVER = float("-inf")


@dataclass(frozen=True)
class Open:
    """A text being written."""

    log: float  # the logarithm of its probability; NEVER for one that only fills the row
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """A text that came to an end, or to its last token."""

    score: float
    log: float
    tokens: list[int]  # without the one that ended it
    whole: bool


class Fan:
    """The beams of one prompt. Scores are log-probabilities divided by ((5 + tokens) / 6)^alpha (Wu et al. 2016)."""

    def __init__(self, size: int, alpha: float, most: int) -> None:
        self.size, self.alpha, self.most = size, alpha, most
        self.beams = [Open(0.0), *[Open(NEVER)] * (size - 1)]
        self.ended: list[Ended] = []
        self.over = self.full = most < 1  # nothing more is to be written; for want of room

    def grow(self, logs: Sequence[float], places: Sequence[int], vocabulary: int, end: int | None) -> list[int]:
        """One token more, from the best candidates: place p is token p % vocabulary after beam p // vocabulary.

        Gives the beam that each of the new ones goes on from.
        """
        parents: list[int] = []
        before, self.beams = self.beams, []
        for log, place in zip(logs, places, strict=True):
            parent, token = divmod(place, vocabulary)
            tokens = before[parent].tokens
            if token == end and log > NEVER:
                self._end(log, tokens, len(tokens) + 1, whole=True)
            elif token != end and len(self.beams) < self.size:
                parents.append(parent)
                self.beams.append(Open(log, [*tokens, token]))
        for _ in range(self.size - len(self.beams)):  # a vocabulary of a few tokens
            parents.append(0)
            self.beams.append(Open(NEVER, [*before[0].tokens, places[0] % vocabulary]))
        self.over = self._settled()
        return parents

    def best(self) -> list[Ended]:
        """The best first; where there was no more room, those that did not end count as they are."""
        left, self.beams = self.beams if not self.ended or self.full else [], []
        for beam in left:
            if beam.log > NEVER:
                self._end(beam.log, beam.tokens, len(beam.tokens), whole=False)
        return self.ended

    def _end(self, log: float, tokens: list[int], length: int, whole: bool) -> None:
        self.ended.append(Ended(log / self._penalty(length), log, tokens, whole))
        self.ended.sort(key=lambda one: -one.score)  # stable: of equals the earlier
        del self.ended[self.size :]

    def _settled(self) -> bool:
        """There is no room left, or what is still open cannot come before what has ended, however long it gets."""
        self.full = len(self.beams[0].tokens) >= self.most
        if self.full or self.beams[0].log == NEVER:
            return True
        return len(self.ended) == self.size and self.beams[0].log / self._penalty(self.most) <= self.ended[-1].score

    def _penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha
