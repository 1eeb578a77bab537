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

from ...config import NonNegFloat, PosFloat, PosInt, Variant
from ...rng import Stream, random_bits, uniform
from .sampling import ban_ngrams, sample_tokens

NEG_INF = float("-inf")


@dataclass(frozen=True)
class PartialHypothesis:
    """A text being written."""

    log_prob: float  # the logarithm of its probability; NEVER for one that only fills the row
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Hypothesis:
    """A text that came to an end, or to its last token."""

    score: float
    log_prob: float
    tokens: list[int]  # without the one that ended it
    is_finished: bool


class BeamSearch:
    """The beams of one prompt. Scores are log-probabilities divided by ((5 + tokens) / 6)^alpha (Wu et al. 2016)."""

    def __init__(self, num_beams: int, alpha: float, max_new_tokens: int) -> None:
        self.num_beams, self.alpha, self.max_new_tokens = num_beams, alpha, max_new_tokens
        self.beams = [PartialHypothesis(0.0), *[PartialHypothesis(NEG_INF)] * (num_beams - 1)]
        self.hypotheses: list[Hypothesis] = []
        self.is_done = self.is_full = max_new_tokens < 1  # nothing more is to be written; for want of room

    def extend(
        self, log_probs: Sequence[float], candidates: Sequence[int], vocab_size: int, eos_token_id: int | None
    ) -> list[int]:
        """One token more, from the best candidates: place p is token p % vocabulary after beam p // vocabulary.

        Gives the beam that each of the new ones goes on from.
        """
        parents: list[int] = []
        before, self.beams = self.beams, []
        for log, place in zip(log_probs, candidates, strict=True):
            parent, token = divmod(place, vocab_size)
            tokens = before[parent].tokens
            if token == eos_token_id and log > NEG_INF:
                self._add_hypothesis(log, tokens, len(tokens) + 1, is_finished=True)
            elif token != eos_token_id and len(self.beams) < self.num_beams:
                parents.append(parent)
                self.beams.append(PartialHypothesis(log, [*tokens, token]))
        for _ in range(self.num_beams - len(self.beams)):  # a vocabulary of a few tokens
            parents.append(0)
            self.beams.append(PartialHypothesis(NEG_INF, [*before[0].tokens, candidates[0] % vocab_size]))
        self.is_done = self._check_done()
        return parents

    def finalize(self) -> list[Hypothesis]:
        """The best first; where there was no more room, those that did not end count as they are."""
        left, self.beams = self.beams if not self.hypotheses or self.is_full else [], []
        for beam in left:
            if beam.log_prob > NEG_INF:
                self._add_hypothesis(beam.log_prob, beam.tokens, len(beam.tokens), is_finished=False)
        return self.hypotheses

    def _add_hypothesis(self, log_prob: float, tokens: list[int], length: int, is_finished: bool) -> None:
        self.hypotheses.append(Hypothesis(log_prob / self._length_penalty(length), log_prob, tokens, is_finished))
        self.hypotheses.sort(key=lambda one: -one.score)  # stable: of equals the earlier
        del self.hypotheses[self.num_beams :]

    def _check_done(self) -> bool:
        """There is no room left, or what is still open cannot come before what has ended, however long it gets."""
        self.is_full = len(self.beams[0].tokens) >= self.max_new_tokens
        if self.is_full or self.beams[0].log_prob == NEG_INF:
            return True
        return (
            len(self.hypotheses) == self.num_beams
            and self.beams[0].log_prob / self._length_penalty(self.max_new_tokens) <= self.hypotheses[-1].score
        )

    def _length_penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha


Ints = NDArray[np.int64]


class IncrementalDecoder(Protocol):
    """A model that writes. Its state has a row for each text being written, and belongs to whoever got it last: one that
    was handed back is not used again."""

    def prefill(self, prompts: Sequence[Ints]) -> tuple[Any, Tensor]:
        """What is known after the prompts, a row each, and (rows, vocabulary): scores of the next token."""
        ...

    def decode_step(self, state: Any, input_ids: Tensor) -> tuple[Any, Tensor]:
        """The same after one more token a row: (rows,), on the device of the scores."""
        ...

    def reorder_state(self, state: Any, row_indices: Tensor) -> Any:
        """The state with these rows, any number of them: some may be gone, some stand there several times."""
        ...


class GenerationBase(Variant, frozen=True):
    """What every way of choosing tokens is told."""

    tokens: Annotated[PosInt, "tokens to write at most"] = 64
    repeat: Annotated[PosInt | None, "no run of so many written tokens comes twice"] = None


class Greedy(GenerationBase, frozen=True):
    """Always the likeliest token."""


class Sample(GenerationBase, frozen=True):
    """A token by chance, the likelier the oftener; the dice of a prompt are its own, whatever else is asked with it."""

    temperature: Annotated[PosFloat, "below 1 the likely become likelier, above 1 the unlikely"] = 1.0
    top_k: Annotated[PosInt | None, "only the so many likeliest"] = None
    top_p: Annotated[float, Meta(gt=0, le=1), "only the fewest that are so likely together"] = 1.0
    seed: Annotated[int, "of the dice"] = 0


class Beam(GenerationBase, frozen=True):
    """The likeliest text, of those that were among the so many likeliest at every length."""

    size: Annotated[PosInt, "texts kept at every length"] = 4
    alpha: Annotated[NonNegFloat, "log-probabilities are divided by ((5 + tokens) / 6)^alpha, Wu et al. 2016; 0: not"] = 0.6


GenerationConfig = Greedy | Sample | Beam


@dataclass(frozen=True)
class GeneratedSequence:
    """What follows one prompt, without the token that ended it; `log` is its log-probability, that token's included,
    as the model has it, whatever the search left out."""

    tokens: list[int]
    log_prob: float
    is_finished: bool  # by that token, and not for want of room


def generate(
    decoder: IncrementalDecoder, prompts: Sequence[Ints], config: GenerationConfig, eos_token_id: int | None = None,
    max_lengths: Sequence[int] | None = None,
) -> list[GeneratedSequence]:  # fmt: skip
    """The continuation of each prompt. `end` is the token that ends a text; `room`, how many more a prompt leaves room for."""
    most = [config.tokens if max_lengths is None else min(config.tokens, max_lengths[i]) for i in range(len(prompts))]
    if isinstance(config, Beam):
        best = beam_search(decoder, prompts, config, eos_token_id, most)
        return [
            GeneratedSequence(one[0].tokens, one[0].log_prob, one[0].is_finished) if one else GeneratedSequence([], 0.0, False)
            for one in best
        ]
    lines = [_Sequence(number, most[number]) for number in range(len(prompts))]
    _generate_tokenwise(decoder, prompts, config, eos_token_id, [line for line in lines if line.max_new_tokens > 0])
    return [GeneratedSequence(line.tokens, line.log_prob, line.is_finished) for line in lines]


def beam_search(
    decoder: IncrementalDecoder, prompts: Sequence[Ints], config: Beam, eos_token_id: int | None, max_new_tokens: Sequence[int]
) -> list[list[Hypothesis]]:
    """For each prompt up to `size` texts, the best first."""
    fans, size = [BeamSearch(config.size, config.alpha, one) for one in max_new_tokens], config.size
    live = [fan for fan in fans if not fan.is_done]
    if not live:
        return [[] for _ in fans]
    state, scores = decoder.prefill([prompt for prompt, fan in zip(prompts, fans, strict=True) if not fan.is_done])
    rows = torch.arange(len(live), device=scores.device).repeat_interleave(size)
    state, scores = decoder.reorder_state(state, rows), scores.index_select(0, rows)
    while True:
        logs = _mask_repeated_ngrams(
            scores.float().log_softmax(-1), [beam.tokens for fan in live for beam in fan.beams], config.repeat
        )
        parents = _extend_beams(live, logs, eos_token_id)
        kept = [number * size + parent for number, fan in enumerate(live) if not fan.is_done for parent in parents[number]]
        live = [fan for fan in live if not fan.is_done]
        if not live:
            return [fan.finalize() for fan in fans]
        state = decoder.reorder_state(state, torch.tensor(kept, device=scores.device))
        tokens = [beam.tokens[-1] for fan in live for beam in fan.beams]
        state, scores = decoder.decode_step(state, torch.tensor(tokens, device=scores.device))


def _extend_beams(searches: Sequence[BeamSearch], log_probs: Tensor, eos_token_id: int | None) -> list[list[int]]:
    """Every fan one token longer; the beams each of its new ones go on from. Half the candidates may be ends."""
    size, words = searches[0].num_beams, log_probs.shape[-1]
    totals = torch.tensor([beam.log_prob for fan in searches for beam in fan.beams], device=log_probs.device)
    best, places = (totals[:, None] + log_probs).view(len(searches), size * words).topk(min(2 * size, size * words))
    each = zip(searches, best.tolist(), places.tolist(), strict=True)
    return [fan.extend(sums, some, words, eos_token_id) for fan, sums, some in each]


@dataclass
class _Sequence:
    """One text being written."""

    prompt_index: int  # of its prompt
    max_new_tokens: int

    def __post_init__(self) -> None:
        self.tokens: list[int] = []
        self.log_prob, self.is_finished, self.num_steps = 0.0, False, 0

    @property
    def is_done(self) -> bool:
        return self.is_finished or len(self.tokens) >= self.max_new_tokens

    def append_token(self, token: int, log_prob: float, eos_token_id: int | None) -> None:
        self.num_steps += 1  # also of a line that is over, and still has its row
        if not self.is_done:
            self.log_prob, self.is_finished = self.log_prob + log_prob, token == eos_token_id
            self.tokens += [] if self.is_finished else [token]


def _generate_tokenwise(
    decoder: IncrementalDecoder,
    prompts: Sequence[Ints],
    config: Greedy | Sample,
    eos_token_id: int | None,
    sequences: list[_Sequence],
) -> None:
    """Each line to its end, all abreast; their rows are given up when half of them are over, or one can go no further."""
    if not sequences:
        return
    state, scores = decoder.prefill([prompts[line.prompt_index] for line in sequences])
    dice = _draw_uniforms(
        config,
        [prompts[line.prompt_index] for line in sequences],
        max(line.max_new_tokens for line in sequences),
        scores.device,
    )
    for nth in range(dice.shape[1]):
        tokens = _choose_tokens(
            _mask_repeated_ngrams(scores, [line.tokens for line in sequences], config.repeat), config, dice[:, nth]
        )
        logs = scores.float().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
        for line, token, log in zip(sequences, tokens.tolist(), logs.tolist(), strict=True):
            line.append_token(token, log, eos_token_id)
        going = [row for row, line in enumerate(sequences) if not line.is_done]
        if not going:
            return
        if len(going) < len(sequences) and (
            2 * len(going) <= len(sequences) or any(line.num_steps >= line.max_new_tokens for line in sequences)
        ):
            rows = torch.tensor(going, device=scores.device)
            sequences, dice, tokens = (
                [sequences[row] for row in going],
                dice.index_select(0, rows),
                tokens.index_select(0, rows),
            )
            state = decoder.reorder_state(state, rows)
        state, scores = decoder.decode_step(state, tokens)


def _draw_uniforms(config: Greedy | Sample, prompts: Sequence[Ints], max_new_tokens: int, device: Any) -> Tensor:
    """(prompts, tokens): a die for each, by what the prompt says and not by its place among others."""
    if isinstance(config, Greedy):
        return torch.zeros(len(prompts), max_new_tokens, dtype=torch.float64, device=device)
    keys = np.array([zlib.crc32(np.asarray(prompt, np.int64).tobytes()) for prompt in prompts])
    return torch.from_numpy(uniform(random_bits(config.seed, Stream.GENERATION, keys[:, None], np.arange(max_new_tokens)))).to(
        device
    )


def _choose_tokens(logits: Tensor, config: Greedy | Sample, uniforms: Tensor) -> Tensor:
    if isinstance(config, Greedy):
        return logits.argmax(-1)
    return sample_tokens(logits, uniforms, config.temperature, config.top_k, config.top_p)


def _mask_repeated_ngrams(logits: Tensor, generated: Sequence[Sequence[int]], no_repeat_ngram_size: int | None) -> Tensor:
    return logits if no_repeat_ngram_size is None else ban_ngrams(logits, generated, no_repeat_ngram_size)
