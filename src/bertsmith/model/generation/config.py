"""How text is generated: greedy search, sampling or beam search, with their settings."""

from typing import Annotated, Literal

from msgspec import Meta

from ...config import PosFloat, PosInt, Variant

LengthPenaltyType = Literal["power", "gnmt"]


class GenerationBase(Variant, frozen=True):
    """Options of all generation strategies."""

    max_new_tokens: Annotated[PosInt, "maximum number of generated tokens"] = 64
    no_repeat_ngram_size: Annotated[PosInt | None, "n-grams of this size are generated at most once; none: no limit"] = None


class Greedy(GenerationBase, frozen=True):
    """Greedy search: always the most likely token."""


class Sample(GenerationBase, frozen=True):
    """Sampling with temperature, top-k and top-p; random numbers depend on the seed, the prompt and the number of equal
    prompts before it, not on the batch."""

    temperature: Annotated[PosFloat, "sampling temperature: logits are divided by it"] = 1.0
    top_k: Annotated[PosInt | None, "sample only from the k most probable tokens; none: all"] = None
    top_p: Annotated[
        float, Meta(gt=0, le=1), "sample only from the smallest set of tokens with this total probability (nucleus)"
    ] = 1.0
    seed: Annotated[int, "random seed"] = 0


class Beam(GenerationBase, frozen=True):
    """Beam search."""

    num_beams: Annotated[PosInt, "number of beams"] = 4
    length_penalty: Annotated[
        float, "exponent p of the length penalty: above 0 favours long outputs, 0 none, below 0 short ones"
    ] = 1.0
    length_penalty_type: Annotated[
        LengthPenaltyType, "a beam's log-probability is divided by length ** p (power) or ((5 + length) / 6) ** p (gnmt)"
    ] = "power"


GenerationConfig = Greedy | Sample | Beam
