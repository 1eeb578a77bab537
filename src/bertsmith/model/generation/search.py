"""Beams: the likeliest beginnings of one text, and those that came to an end, each by its length."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from ...config import Amount, Count, Positive, Variant
from ...rng import Stream, bits, uniform
from .sampling import barred, drawn

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


Ints = NDArray[np.int64]


class Stepper(Protocol):
    """A model that writes. Its state has a row for each text being written, and belongs to whoever got it last: one that
    was handed back is not used again."""

    def begin(self, prompts: Sequence[Ints]) -> tuple[Any, Tensor]:
        """What is known after the prompts, a row each, and (rows, vocabulary): scores of the next token."""
        ...

    def step(self, state: Any, tokens: Tensor) -> tuple[Any, Tensor]:
        """The same after one more token a row: (rows,), on the device of the scores."""
        ...

    def reorder(self, state: Any, rows: Tensor) -> Any:
        """The state with these rows, any number of them: some may be gone, some stand there several times."""
        ...


class Search(Variant, frozen=True):
    """What every way of choosing tokens is told."""

    tokens: Annotated[Count, "tokens to write at most"] = 64
    repeat: Annotated[Count | None, "no run of so many written tokens comes twice"] = None


class Greedy(Search, frozen=True):
    """Always the likeliest token."""


class Sample(Search, frozen=True):
    """A token by chance, the likelier the oftener; the dice of a prompt are its own, whatever else is asked with it."""

    temperature: Annotated[Positive, "below 1 the likely become likelier, above 1 the unlikely"] = 1.0
    top_k: Annotated[Count | None, "only the so many likeliest"] = None
    top_p: Annotated[float, Meta(gt=0, le=1), "only the fewest that are so likely together"] = 1.0
    seed: Annotated[int, "of the dice"] = 0


class Beam(Search, frozen=True):
    """The likeliest text, of those that were among the so many likeliest at every length."""

    size: Annotated[Count, "texts kept at every length"] = 4
    alpha: Annotated[Amount, "log-probabilities are divided by ((5 + tokens) / 6)^alpha, Wu et al. 2016; 0: not"] = 0.6


SearchConfig = Greedy | Sample | Beam


@dataclass(frozen=True)
class Written:
    """What follows one prompt, without the token that ended it; `log` is its log-probability, that token's included,
    as the model has it, whatever the search left out."""

    tokens: list[int]
    log: float
    ended: bool  # by that token, and not for want of room


def written(
    stepper: Stepper, prompts: Sequence[Ints], search: SearchConfig, end: int | None = None,
    room: Sequence[int] | None = None,
) -> list[Written]:  # fmt: skip
    """The continuation of each prompt. `end` is the token that ends a text; `room`, how many more a prompt leaves room for."""
    most = [search.tokens if room is None else min(search.tokens, room[i]) for i in range(len(prompts))]
    if isinstance(search, Beam):
        best = fanned(stepper, prompts, search, end, most)
        return [Written(one[0].tokens, one[0].log, one[0].whole) if one else Written([], 0.0, False) for one in best]
    lines = [_Line(number, most[number]) for number in range(len(prompts))]
    _walk(stepper, prompts, search, end, [line for line in lines if line.most > 0])
    return [Written(line.tokens, line.log, line.ended) for line in lines]


def fanned(stepper: Stepper, prompts: Sequence[Ints], search: Beam, end: int | None, most: Sequence[int]) -> list[list[Ended]]:
    """For each prompt up to `size` texts, the best first."""
    fans, size = [Fan(search.size, search.alpha, one) for one in most], search.size
    live = [fan for fan in fans if not fan.over]
    if not live:
        return [[] for _ in fans]
    state, scores = stepper.begin([prompt for prompt, fan in zip(prompts, fans, strict=True) if not fan.over])
    rows = torch.arange(len(live), device=scores.device).repeat_interleave(size)
    state, scores = stepper.reorder(state, rows), scores.index_select(0, rows)
    while True:
        logs = _free(scores.float().log_softmax(-1), [beam.tokens for fan in live for beam in fan.beams], search.repeat)
        parents = _grown(live, logs, end)
        kept = [number * size + parent for number, fan in enumerate(live) if not fan.over for parent in parents[number]]
        live = [fan for fan in live if not fan.over]
        if not live:
            return [fan.best() for fan in fans]
        state = stepper.reorder(state, torch.tensor(kept, device=scores.device))
        tokens = [beam.tokens[-1] for fan in live for beam in fan.beams]
        state, scores = stepper.step(state, torch.tensor(tokens, device=scores.device))


def _grown(fans: Sequence[Fan], logs: Tensor, end: int | None) -> list[list[int]]:
    """Every fan one token longer; the beams each of its new ones go on from. Half the candidates may be ends."""
    size, words = fans[0].size, logs.shape[-1]
    totals = torch.tensor([beam.log for fan in fans for beam in fan.beams], device=logs.device)
    best, places = (totals[:, None] + logs).view(len(fans), size * words).topk(min(2 * size, size * words))
    each = zip(fans, best.tolist(), places.tolist(), strict=True)
    return [fan.grow(sums, some, words, end) for fan, sums, some in each]


@dataclass
class _Line:
    """One text being written."""

    number: int  # of its prompt
    most: int

    def __post_init__(self) -> None:
        self.tokens: list[int] = []
        self.log, self.ended, self.steps = 0.0, False, 0

    @property
    def over(self) -> bool:
        return self.ended or len(self.tokens) >= self.most

    def add(self, token: int, log: float, end: int | None) -> None:
        self.steps += 1  # also of a line that is over, and still has its row
        if not self.over:
            self.log, self.ended = self.log + log, token == end
            self.tokens += [] if self.ended else [token]


def _walk(stepper: Stepper, prompts: Sequence[Ints], search: Greedy | Sample, end: int | None, lines: list[_Line]) -> None:
    """Each line to its end, all abreast; their rows are given up when half of them are over, or one can go no further."""
    if not lines:
        return
    state, scores = stepper.begin([prompts[line.number] for line in lines])
    dice = _dice(search, [prompts[line.number] for line in lines], max(line.most for line in lines), scores.device)
    for nth in range(dice.shape[1]):
        tokens = _chosen(_free(scores, [line.tokens for line in lines], search.repeat), search, dice[:, nth])
        logs = scores.float().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
        for line, token, log in zip(lines, tokens.tolist(), logs.tolist(), strict=True):
            line.add(token, log, end)
        going = [row for row, line in enumerate(lines) if not line.over]
        if not going:
            return
        if len(going) < len(lines) and (2 * len(going) <= len(lines) or any(line.steps >= line.most for line in lines)):
            rows = torch.tensor(going, device=scores.device)
            lines, dice, tokens = [lines[row] for row in going], dice.index_select(0, rows), tokens.index_select(0, rows)
            state = stepper.reorder(state, rows)
        state, scores = stepper.step(state, tokens)


def _dice(search: Greedy | Sample, prompts: Sequence[Ints], most: int, device: Any) -> Tensor:
    """(prompts, tokens): a die for each, by what the prompt says and not by its place among others."""
    if isinstance(search, Greedy):
        return torch.zeros(len(prompts), most, dtype=torch.float64, device=device)
    keys = np.array([zlib.crc32(np.asarray(prompt, np.int64).tobytes()) for prompt in prompts])
    return torch.from_numpy(uniform(bits(search.seed, Stream.GENERATION, keys[:, None], np.arange(most)))).to(device)


def _chosen(scores: Tensor, search: Greedy | Sample, dice: Tensor) -> Tensor:
    if isinstance(search, Greedy):
        return scores.argmax(-1)
    return drawn(scores, dice, search.temperature, search.top_k, search.top_p)


def _free(scores: Tensor, lines: Sequence[Sequence[int]], repeat: int | None) -> Tensor:
    return scores if repeat is None else barred(scores, lines, repeat)
