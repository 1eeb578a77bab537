"""Text generation: greedy search, sampling and beam search over any `IncrementalDecoder`.

`generate` is the entry point, and `stream` the same token by token; their settings are in `config`.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...rng import Stream, random_bits, uniform
from .config import Beam, GenerationConfig, Greedy, LengthPenaltyType, Sample
from .incremental import IncrementalDecoder, Ints
from .sampling import ban_ngrams, sample_tokens

NEG_INF = float("-inf")


@dataclass(frozen=True)
class GeneratedSequence:
    """Generated tokens of one prompt, without eos.

    `log_prob` is the model's own log-probability, eos included, before temperature, top-k, top-p and banned n-grams.
    """

    tokens: list[int]
    log_prob: float
    is_finished: bool  # ended by eos, not by max_new_tokens


def generate(
    decoder: IncrementalDecoder, prompts: Sequence[Ints], config: GenerationConfig, eos_token_id: int | None = None,
    max_lengths: Sequence[int] | None = None, copy_numbers: Sequence[int] | None = None,
) -> list[GeneratedSequence]:  # fmt: skip
    """Generate a continuation of each prompt, up to `eos_token_id`, `config.max_new_tokens` or the prompt's `max_lengths`.

    `copy_numbers`, from `number_copies` of all prompts, where these are a batch of them.
    """
    max_new_tokens = [
        config.max_new_tokens if max_lengths is None else min(config.max_new_tokens, max_lengths[i])
        for i in range(len(prompts))
    ]
    if isinstance(config, Beam):
        hypotheses = beam_search(decoder, prompts, config, eos_token_id, max_new_tokens)
        return [
            GeneratedSequence(ranked[0].tokens, ranked[0].log_prob, ranked[0].is_finished)
            if ranked
            else GeneratedSequence([], 0.0, False)
            for ranked in hypotheses
        ]
    copy_numbers = number_copies(prompts) if copy_numbers is None else copy_numbers
    sequences = [_Sequence(i, max_new_tokens[i], copy_numbers[i]) for i in range(len(prompts))]
    unfinished = [sequence for sequence in sequences if sequence.max_new_tokens > 0]
    for _ in _generate_tokenwise(decoder, prompts, config, eos_token_id, unfinished):
        pass
    return [sequence.to_result() for sequence in sequences]


def stream(
    decoder: IncrementalDecoder, prompt: Ints, config: Greedy | Sample, eos_token_id: int | None, max_new_tokens: int
) -> Iterator[GeneratedSequence]:
    """The continuation of one prompt after each token, the last time as `generate` returns it."""
    sequence = _Sequence(0, max_new_tokens, copy_number=0)
    for _ in _generate_tokenwise(decoder, [prompt], config, eos_token_id, [sequence] if max_new_tokens > 0 else []):
        yield sequence.to_result()


def number_copies(prompts: Iterable[Ints]) -> list[int]:
    """How many equal prompts come before each prompt: with it, copies of a prompt are sampled independently of each other."""
    seen = Counter[bytes]()
    numbers = []
    for prompt in prompts:
        key = np.asarray(prompt, np.int64).tobytes()
        numbers.append(seen[key])
        seen[key] += 1
    return numbers


@dataclass(frozen=True)
class PartialHypothesis:
    """An unfinished hypothesis of a beam search."""

    log_prob: float  # sum of token log-probabilities; NEG_INF for one that only fills a row
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Hypothesis:
    """A finished hypothesis: ended by eos, or by max_new_tokens."""

    score: float  # log_prob / length penalty
    log_prob: float
    tokens: list[int]  # without eos
    is_finished: bool


def compute_length_penalty(length: int, exponent: float, penalty_type: LengthPenaltyType) -> float:
    """Divisor of a hypothesis' log-probability; `length` counts generated tokens including eos.

    power: length ** exponent, as in transformers; gnmt: ((5 + length) / 6) ** exponent (Wu et al. 2016, eq. 14).
    """
    return float(max(length, 1) if penalty_type == "power" else (5 + length) / 6) ** exponent


class BeamSearch:
    """Beam search for one prompt. The score of a hypothesis is its log-probability divided by its length penalty."""

    def __init__(self, config: Beam, max_new_tokens: int) -> None:
        self.config, self.num_beams, self.max_new_tokens = config, config.num_beams, max_new_tokens
        self.beams = [PartialHypothesis(0.0), *[PartialHypothesis(NEG_INF)] * (config.num_beams - 1)]
        self.hypotheses: list[Hypothesis] = []
        self.is_done = self.is_full = max_new_tokens < 1  # nothing left to generate; because max_new_tokens is reached

    def extend(
        self, log_probs: Sequence[float], candidates: Sequence[int], vocab_size: int, eos_token_id: int | None
    ) -> list[int]:
        """Extend the beams by one token; returns the parent beam of each new beam.

        `candidates`, best first: c is token c % vocab_size after beam c // vocab_size; `log_probs` are their totals.
        """
        parents: list[int] = []
        previous, self.beams = self.beams, []
        for log_prob, candidate in zip(log_probs, candidates, strict=True):
            parent, token = divmod(candidate, vocab_size)
            tokens = previous[parent].tokens
            if token == eos_token_id and log_prob > NEG_INF:
                self._add_hypothesis(log_prob, tokens, len(tokens) + 1, is_finished=True)
            elif token != eos_token_id and len(self.beams) < self.num_beams:
                parents.append(parent)
                self.beams.append(PartialHypothesis(log_prob, [*tokens, token]))
        for _ in range(self.num_beams - len(self.beams)):  # fewer candidates than beams: a tiny vocabulary
            parents.append(0)
            self.beams.append(PartialHypothesis(NEG_INF, [*previous[0].tokens, candidates[0] % vocab_size]))
        self.is_done = self._check_done()
        return parents

    def finalize(self) -> list[Hypothesis]:
        """Hypotheses, best first; unfinished beams count if max_new_tokens was reached or nothing has finished."""
        unfinished, self.beams = self.beams if not self.hypotheses or self.is_full else [], []
        for beam in unfinished:
            if beam.log_prob > NEG_INF:
                self._add_hypothesis(beam.log_prob, beam.tokens, len(beam.tokens), is_finished=False)
        return self.hypotheses

    def _add_hypothesis(self, log_prob: float, tokens: list[int], length: int, is_finished: bool) -> None:
        self.hypotheses.append(Hypothesis(log_prob / self._length_penalty(length), log_prob, tokens, is_finished))
        self.hypotheses.sort(key=lambda hypothesis: -hypothesis.score)  # stable: the earlier of equals first
        del self.hypotheses[self.num_beams :]

    def _check_done(self) -> bool:
        """Whether max_new_tokens is reached, or no open beam can beat the finished hypotheses at any length."""
        self.is_full = len(self.beams[0].tokens) >= self.max_new_tokens
        if self.is_full or self.beams[0].log_prob == NEG_INF:
            return True
        if len(self.hypotheses) < self.num_beams:
            return False
        lengths = len(self.beams[0].tokens) + 1, self.max_new_tokens  # the penalty is monotonic in the length
        best_score = self.beams[0].log_prob / max(map(self._length_penalty, lengths))
        return best_score <= self.hypotheses[-1].score

    def _length_penalty(self, length: int) -> float:
        return compute_length_penalty(length, self.config.length_penalty, self.config.length_penalty_type)


def beam_search(
    decoder: IncrementalDecoder, prompts: Sequence[Ints], config: Beam, eos_token_id: int | None, max_new_tokens: Sequence[int]
) -> list[list[Hypothesis]]:
    """Up to `config.num_beams` hypotheses for each prompt, best first."""
    searches, size = [BeamSearch(config, limit) for limit in max_new_tokens], config.num_beams
    active = [search for search in searches if not search.is_done]
    if not active:
        return [[] for _ in searches]
    state, logits = decoder.prefill([prompt for prompt, search in zip(prompts, searches, strict=True) if not search.is_done])
    rows = torch.arange(len(active), device=logits.device).repeat_interleave(size)
    state, logits = decoder.reorder_state(state, rows), logits.index_select(0, rows)
    while True:
        log_probs = _mask_repeated_ngrams(
            logits.float().log_softmax(-1),
            [beam.tokens for search in active for beam in search.beams],
            config.no_repeat_ngram_size,
        )
        parents = _extend_beams(active, log_probs, eos_token_id)
        kept_rows = [i * size + parent for i, search in enumerate(active) if not search.is_done for parent in parents[i]]
        active = [search for search in active if not search.is_done]
        if not active:
            return [search.finalize() for search in searches]
        state = decoder.reorder_state(state, torch.tensor(kept_rows, device=logits.device))
        tokens = [beam.tokens[-1] for search in active for beam in search.beams]
        state, logits = decoder.decode_step(state, torch.tensor(tokens, device=logits.device))


def _extend_beams(searches: Sequence[BeamSearch], log_probs: Tensor, eos_token_id: int | None) -> list[list[int]]:
    """Extend all searches by one token; returns the parents of their new beams.

    2 * num_beams candidates each, as up to num_beams of them may be eos.
    """
    size, vocab_size = searches[0].num_beams, log_probs.shape[-1]
    totals = torch.tensor([beam.log_prob for search in searches for beam in search.beams], device=log_probs.device)
    best_totals, candidate_ids = (
        (totals[:, None] + log_probs).view(len(searches), size * vocab_size).topk(min(2 * size, size * vocab_size))
    )
    per_search = zip(searches, best_totals.tolist(), candidate_ids.tolist(), strict=True)
    return [
        search.extend(totals_of_search, candidates, vocab_size, eos_token_id)
        for search, totals_of_search, candidates in per_search
    ]


@dataclass
class _Sequence:
    """One text being generated."""

    prompt_index: int  # index of its prompt
    max_new_tokens: int
    copy_number: int

    def __post_init__(self) -> None:
        self.tokens: list[int] = []
        self.log_prob, self.is_finished, self.num_steps = 0.0, False, 0

    @property
    def is_done(self) -> bool:
        return self.is_finished or len(self.tokens) >= self.max_new_tokens

    def to_result(self) -> GeneratedSequence:
        return GeneratedSequence(list(self.tokens), self.log_prob, self.is_finished)

    def append_token(self, token: int, log_prob: float, eos_token_id: int | None) -> None:
        self.num_steps += 1  # counted for finished sequences too, while they keep their row
        if not self.is_done:
            self.log_prob, self.is_finished = self.log_prob + log_prob, token == eos_token_id
            self.tokens += [] if self.is_finished else [token]


def _generate_tokenwise(
    decoder: IncrementalDecoder,
    prompts: Sequence[Ints],
    config: Greedy | Sample,
    eos_token_id: int | None,
    sequences: list[_Sequence],
) -> Iterator[None]:
    """Generate all sequences in parallel; yields after each token.

    Rows of finished ones are dropped when half are finished, or when one has reached its max_new_tokens (its cache has no room
    for more).
    """
    if not sequences:
        return
    state, logits = decoder.prefill([prompts[sequence.prompt_index] for sequence in sequences])
    uniforms = _draw_uniforms(
        config,
        [prompts[sequence.prompt_index] for sequence in sequences],
        [sequence.copy_number for sequence in sequences],
        max(sequence.max_new_tokens for sequence in sequences),
        logits.device,
    )
    for step in range(uniforms.shape[1]):
        tokens = _choose_tokens(
            _mask_repeated_ngrams(logits, [sequence.tokens for sequence in sequences], config.no_repeat_ngram_size),
            config,
            uniforms[:, step],
        )
        log_probs = logits.float().log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
        for sequence, token, log_prob in zip(sequences, tokens.tolist(), log_probs.tolist(), strict=True):
            sequence.append_token(token, log_prob, eos_token_id)
        yield
        active_rows = [row for row, sequence in enumerate(sequences) if not sequence.is_done]
        if not active_rows:
            return
        if len(active_rows) < len(sequences) and (
            2 * len(active_rows) <= len(sequences)
            or any(sequence.num_steps >= sequence.max_new_tokens for sequence in sequences)
        ):
            rows = torch.tensor(active_rows, device=logits.device)
            sequences, uniforms, tokens = (
                [sequences[row] for row in active_rows],
                uniforms.index_select(0, rows),
                tokens.index_select(0, rows),
            )
            state = decoder.reorder_state(state, rows)
        state, logits = decoder.decode_step(state, tokens)


def _draw_uniforms(
    config: Greedy | Sample, prompts: Sequence[Ints], copy_numbers: Sequence[int], max_new_tokens: int, device: Any
) -> Tensor:
    """(prompts, max_new_tokens) float64 in [0, 1), keyed by prompt and copy number, not by its row in the batch."""
    if isinstance(config, Greedy):
        return torch.zeros(len(prompts), max_new_tokens, dtype=torch.float64, device=device)
    keys = np.array([zlib.crc32(np.asarray(prompt, np.int64).tobytes()) for prompt in prompts])
    counters = (np.array(copy_numbers)[:, None] << 32) + np.arange(max_new_tokens)
    return torch.from_numpy(uniform(random_bits(config.seed, Stream.GENERATION, keys[:, None], counters))).to(device)


def _choose_tokens(logits: Tensor, config: Greedy | Sample, uniforms: Tensor) -> Tensor:
    if isinstance(config, Greedy):
        return logits.argmax(-1)
    return sample_tokens(logits, uniforms, config.temperature, config.top_k, config.top_p)


def _mask_repeated_ngrams(logits: Tensor, generated: Sequence[Sequence[int]], no_repeat_ngram_size: int | None) -> Tensor:
    return logits if no_repeat_ngram_size is None else ban_ngrams(logits, generated, no_repeat_ngram_size)
