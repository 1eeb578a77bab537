"""Which tag may follow which, and the best-scored sequence of tags that keeps to it (Viterbi)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .scorers.conlleval import marks_spans, parted

Scheme = Literal["any", "bio", "bioes"]
KEEPS = 0.99  # a scheme is the one of a file if this share of its sentences keeps to it: a slip of a pen changes no scheme


def scheme_of(sentences: Sequence[Sequence[str]]) -> Scheme:
    """The strictest scheme these tags keep to: `any` for parts of speech, and where I may begin an entity (IO, IOB1)."""
    if not marks_spans(sorted({tag for tags in sentences for tag in tags})):
        return "any"
    tagged = [tags for tags in sentences if any(parted(tag)[0] != "O" for tag in tags)]
    schemes: tuple[Scheme, ...] = ("bioes", "bio")
    for scheme in schemes:
        if tagged and sum(is_legal(tags, scheme) for tags in tagged) >= KEEPS * len(tagged):
            return scheme
    return "any"


def is_legal(tags: Sequence[str], scheme: Scheme) -> bool:
    return all(follows(a, b, scheme) for a, b in zip(["O", *tags], [*tags, "O"], strict=True))


def follows(before: str, here: str, scheme: Scheme) -> bool:
    """Whether one tag may stand after another; a sentence begins after an O and ends before one."""
    if scheme == "any":
        return True
    (letter, name), (next_letter, next_name) = parted(before), parted(here)
    inside = letter in "BI" and name == next_name
    if scheme == "bio":
        return next_letter != "I" or inside
    return inside and next_letter in "IE" if letter in "BI" else next_letter in "OBS"


@lru_cache(maxsize=8)
def allowed(labels: tuple[str, ...], scheme: Scheme) -> NDArray[np.bool_]:
    """(labels + 1, labels + 1): which tag (column) may follow which (row).

    The last row begins a sentence, the last column ends it.
    """
    edged = (*labels, "O")
    table = np.array([[follows(before, here, scheme) for here in edged] for before in edged])
    table.flags.writeable = False  # it is everybody's
    return table


def best_path(
    scores: NDArray[np.floating], labels: Sequence[str], scheme: Scheme, moves: NDArray[np.floating] | None = None
) -> NDArray[np.int64]:
    """The labels, one a token, whose scores (tokens, labels) have the largest sum of all legal sequences.

    `moves` is what each step adds to the sum, in the shape of `allowed`: a table that a model learnt. Where labels allow
    no legal sequence at all, the best of all.
    """
    free = scores.argmax(-1)
    if not len(scores) or (moves is None and is_legal([labels[i] for i in free], scheme)):
        return free
    learnt = np.zeros((len(labels) + 1,) * 2) if moves is None else moves.astype(np.float64)
    legal = np.where(allowed(tuple(labels), scheme), learnt, -np.inf)
    path = _viterbi(scores.astype(np.float64), legal)
    path = _viterbi(scores.astype(np.float64), learnt) if path is None else path
    return free if path is None else path


def _viterbi(scores: NDArray[np.float64], moves: NDArray[np.float64]) -> NDArray[np.int64] | None:
    best, back = scores[0] + moves[-1, :-1], np.zeros(scores.shape, np.int64)
    between, last = moves[:-1, :-1], moves[:-1, -1]
    for place in range(1, len(scores)):
        reached = best[:, None] + between
        back[place] = reached.argmax(0)
        best = reached.max(0) + scores[place]
    path = np.zeros(len(scores), np.int64)
    path[-1] = (best + last).argmax()
    if not np.isfinite((best + last).max()):
        return None
    for place in range(len(scores) - 1, 0, -1):
        path[place - 1] = back[place, path[place]]
    return path
