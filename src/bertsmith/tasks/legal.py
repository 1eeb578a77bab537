"""Which tag may follow which, and the best-scored sequence of tags that keeps to it (Viterbi)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .entities import marks_spans, parted

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


def best_path(scores: NDArray[np.floating], labels: Sequence[str], scheme: Scheme) -> NDArray[np.int64]:
    """The labels, one a token, whose scores (tokens, labels) have the largest sum of all legal sequences.

    Where labels allow no legal sequence at all, the best of each token.
    """
    free = scores.argmax(-1)
    if scheme == "any" or not len(scores) or is_legal([labels[i] for i in free], scheme):
        return free
    allowed, first, last = _allowed(tuple(labels), scheme)
    path = _viterbi(scores.astype(np.float64), *(np.where(may, 0.0, -np.inf) for may in (allowed, first, last)))
    return free if path is None else path


def _allowed(labels: tuple[str, ...], scheme: Scheme) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """(before, here), the first, the last."""
    table = np.array([[follows(before, here, scheme) for here in labels] for before in labels])
    ends = np.array([[follows("O", label, scheme), follows(label, "O", scheme)] for label in labels])
    return table, ends[:, 0], ends[:, 1]


def _viterbi(
    scores: NDArray[np.float64], moves: NDArray[np.float64], first: NDArray[np.float64], last: NDArray[np.float64]
) -> NDArray[np.int64] | None:
    best, back = scores[0] + first, np.zeros(scores.shape, np.int64)
    for place in range(1, len(scores)):
        reached = best[:, None] + moves
        back[place] = reached.argmax(0)
        best = reached.max(0) + scores[place]
    path = np.zeros(len(scores), np.int64)
    path[-1] = (best + last).argmax()
    if not np.isfinite((best + last).max()):
        return None
    for place in range(len(scores) - 1, 0, -1):
        path[place - 1] = back[place, path[place]]
    return path
