"""Which tag may follow which, and the best-scored sequence of tags that keeps to it (Viterbi)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .scorers.conlleval import are_span_tags, split_tag

TagScheme = Literal["any", "bio", "bioes"]
MIN_VALID_SHARE = (
    0.99  # a scheme is the one of a file if this share of its sentences keeps to it: a slip of a pen changes no scheme
)


def detect_scheme(sentences: Sequence[Sequence[str]]) -> TagScheme:
    """The strictest scheme these tags keep to: `any` for parts of speech, and where I may begin an entity (IO, IOB1)."""
    if not are_span_tags(sorted({tag for tags in sentences for tag in tags})):
        return "any"
    tagged = [tags for tags in sentences if any(split_tag(tag)[0] != "O" for tag in tags)]
    schemes: tuple[TagScheme, ...] = ("bioes", "bio")
    for scheme in schemes:
        if tagged and sum(is_valid_sequence(tags, scheme) for tags in tagged) >= MIN_VALID_SHARE * len(tagged):
            return scheme
    return "any"


def is_valid_sequence(tags: Sequence[str], scheme: TagScheme) -> bool:
    return all(can_follow(a, b, scheme) for a, b in zip(["O", *tags], [*tags, "O"], strict=True))


def can_follow(previous: str, current: str, scheme: TagScheme) -> bool:
    """Whether one tag may stand after another; a sentence begins after an O and ends before one."""
    if scheme == "any":
        return True
    (letter, name), (next_letter, next_name) = split_tag(previous), split_tag(current)
    inside = letter in "BI" and name == next_name
    if scheme == "bio":
        return next_letter != "I" or inside
    return inside and next_letter in "IE" if letter in "BI" else next_letter in "OBS"


@lru_cache(maxsize=8)
def transition_mask(labels: tuple[str, ...], scheme: TagScheme) -> NDArray[np.bool_]:
    """(labels + 1, labels + 1): which tag (column) may follow which (row).

    The last row begins a sentence, the last column ends it.
    """
    edged = (*labels, "O")
    table = np.array([[can_follow(before, here, scheme) for here in edged] for before in edged])
    table.flags.writeable = False  # it is everybody's
    return table


def viterbi_decode(
    emissions: NDArray[np.floating], labels: Sequence[str], scheme: TagScheme, transitions: NDArray[np.floating] | None = None
) -> NDArray[np.int64]:
    """The labels, one a token, whose scores (tokens, labels) have the largest sum of all legal sequences.

    `moves` is what each step adds to the sum, in the shape of `allowed`: a table that a model learnt. Where labels allow
    no legal sequence at all, the best of all.
    """
    free = emissions.argmax(-1)
    if not len(emissions) or (transitions is None and is_valid_sequence([labels[i] for i in free], scheme)):
        return free
    learnt = np.zeros((len(labels) + 1,) * 2) if transitions is None else transitions.astype(np.float64)
    legal = np.where(transition_mask(tuple(labels), scheme), learnt, -np.inf)
    path = _viterbi_path(emissions.astype(np.float64), legal)
    path = _viterbi_path(emissions.astype(np.float64), learnt) if path is None else path
    return free if path is None else path


def _viterbi_path(emissions: NDArray[np.float64], transitions: NDArray[np.float64]) -> NDArray[np.int64] | None:
    best, back = emissions[0] + transitions[-1, :-1], np.zeros(emissions.shape, np.int64)
    between, last = transitions[:-1, :-1], transitions[:-1, -1]
    for place in range(1, len(emissions)):
        reached = best[:, None] + between
        back[place] = reached.argmax(0)
        best = reached.max(0) + emissions[place]
    path = np.zeros(len(emissions), np.int64)
    path[-1] = (best + last).argmax()
    if not np.isfinite((best + last).max()):
        return None
    for place in range(len(emissions) - 1, 0, -1):
        path[place - 1] = back[place, path[place]]
    return path
