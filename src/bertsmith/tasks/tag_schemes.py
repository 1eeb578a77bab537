"""Tag schemes (BIO, BIOES): valid transitions between tags, and Viterbi decoding constrained to them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .scorers.conlleval import are_span_tags, split_tag

TagScheme = Literal["any", "bio", "bioes"]
MIN_VALID_SHARE = 0.99  # fraction of sentences that must be valid in a scheme to detect it: tolerates annotation errors


def detect_scheme(sentences: Sequence[Sequence[str]]) -> TagScheme:
    """The strictest scheme of the sentences; `any` for part-of-speech tags and where I may start an entity (IO, IOB1)."""
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
    """Whether `current` may follow `previous`; the start and the end of a sentence count as O."""
    if scheme == "any":
        return True
    (prefix, entity_type), (next_prefix, next_type) = split_tag(previous), split_tag(current)
    is_inside = prefix in "BI" and entity_type == next_type
    if scheme == "bio":
        return next_prefix != "I" or is_inside
    return is_inside and next_prefix in "IE" if prefix in "BI" else next_prefix in "OBS"


@lru_cache(maxsize=8)
def transition_mask(labels: tuple[str, ...], scheme: TagScheme) -> NDArray[np.bool_]:
    """bool (labels + 1, labels + 1): whether the tag of the column may follow the tag of the row.

    The last row is the start of a sentence, the last column its end.
    """
    with_boundary = (*labels, "O")
    mask = np.array([[can_follow(previous, current, scheme) for current in with_boundary] for previous in with_boundary])
    mask.flags.writeable = False  # shared by the cache
    return mask


def viterbi_decode(
    emissions: NDArray[np.floating], labels: Sequence[str], scheme: TagScheme, transitions: NDArray[np.floating] | None = None
) -> NDArray[np.int64]:
    """(tokens,) label ids of the valid tag sequence with the highest score: sum of emissions (tokens, labels) and transitions.

    `transitions`, (labels + 1, labels + 1) as in `transition_mask`, are the learned scores of a CRF. If no sequence is
    valid, the best one of all.
    """
    argmax = emissions.argmax(-1)
    if not len(emissions) or (transitions is None and is_valid_sequence([labels[i] for i in argmax], scheme)):
        return argmax
    scores = np.zeros((len(labels) + 1,) * 2) if transitions is None else transitions.astype(np.float64)
    path = _viterbi_path(emissions.astype(np.float64), _constrain(scores, labels, scheme))
    path = _viterbi_path(emissions.astype(np.float64), scores) if path is None else path
    return argmax if path is None else path


def tag_marginals(
    emissions: NDArray[np.floating], labels: Sequence[str], scheme: TagScheme, transitions: NDArray[np.floating]
) -> NDArray[np.float64]:
    """(tokens, labels) marginal probabilities P(tag of the token | emissions) of a linear-chain CRF, by forward-backward.

    The sum over tag sequences is restricted to valid ones as in `viterbi_decode`; if none is valid, it is over all.
    """
    if not len(emissions):
        return np.zeros(emissions.shape)
    logits, scores = emissions.astype(np.float64), transitions.astype(np.float64)
    log_probs = _log_marginals(logits, _constrain(scores, labels, scheme))
    return np.exp(_log_marginals(logits, scores) if np.isnan(log_probs).all() else log_probs)


def _constrain(transitions: NDArray[np.float64], labels: Sequence[str], scheme: TagScheme) -> NDArray[np.float64]:
    return np.where(transition_mask(tuple(labels), scheme), transitions, -np.inf)


def _log_marginals(emissions: NDArray[np.float64], transitions: NDArray[np.float64]) -> NDArray[np.float64]:
    """nan if every sequence has probability 0."""
    inner, last = transitions[:-1, :-1], len(emissions) - 1
    forward, backward = np.empty_like(emissions), np.empty_like(emissions)
    forward[0], backward[last] = emissions[0] + transitions[-1, :-1], transitions[:-1, -1]
    for position in range(1, len(emissions)):
        forward[position] = np.logaddexp.reduce(forward[position - 1][:, None] + inner, axis=0) + emissions[position]
    for position in range(last, 0, -1):
        backward[position - 1] = np.logaddexp.reduce(inner + emissions[position] + backward[position], axis=1)
    with np.errstate(invalid="ignore"):
        return forward + backward - np.logaddexp.reduce(forward[last] + backward[last])


def _viterbi_path(emissions: NDArray[np.float64], transitions: NDArray[np.float64]) -> NDArray[np.int64] | None:
    best, backpointers = emissions[0] + transitions[-1, :-1], np.zeros(emissions.shape, np.int64)
    inner, final = transitions[:-1, :-1], transitions[:-1, -1]
    for position in range(1, len(emissions)):
        candidates = best[:, None] + inner
        backpointers[position] = candidates.argmax(0)
        best = candidates.max(0) + emissions[position]
    path = np.zeros(len(emissions), np.int64)
    path[-1] = (best + final).argmax()
    if not np.isfinite((best + final).max()):
        return None
    for position in range(len(emissions) - 1, 0, -1):
        path[position - 1] = backpointers[position, path[position]]
    return path
