"""One token for each row of scores: the likeliest, or one that dice choose among the likely."""

from collections.abc import Sequence

import torch
from torch import Tensor

NEAR = 1024  # the likeliest, among which top_p is looked for first: to sort a whole vocabulary takes longer than a small model

TINY = torch.finfo(torch.float32).tiny


def drawn(scores: Tensor, dice: Tensor, temperature: float, top_k: int | None, top_p: float) -> Tensor:
    """(rows, vocabulary) and (rows,) of [0, 1) in float64 to (rows,): the token where the sum of shares passes the die.

    The temperature comes first, then top_k, then top_p of what that left; the token that reaches top_p is still in.
    """
    scores = scores.float()
    scores = (scores - scores.amax(-1, keepdim=True)) / max(temperature, TINY)  # no temperature makes it overflow
    if top_k is None and top_p >= 1:
        return _passed(scores.softmax(-1), dice)
    best, ids = _likely(scores, top_k, top_p)
    shares = (best - (best if top_k else scores).logsumexp(-1, keepdim=True)).exp()
    before = shares.cumsum(-1) - shares
    return ids.gather(1, _passed(shares.masked_fill(before >= top_p, 0.0), dice)[:, None]).squeeze(1)


def _likely(scores: Tensor, top_k: int | None, top_p: float) -> tuple[Tensor, Tensor]:
    """The likeliest in order, and their ids: as many as can matter."""
    best, ids = scores.topk(min(top_k or NEAR, scores.shape[-1]))
    if top_k is None and bool(((best - scores.logsumexp(-1, keepdim=True)).exp().sum(-1) < top_p).any()):
        best, ids = scores.sort(-1, descending=True)
    return best, ids


def _passed(shares: Tensor, dice: Tensor) -> Tensor:
    """(rows,): the first place at which the sum of the shares is above the die's share of them all."""
    sums = shares.double().cumsum(-1)
    place = torch.searchsorted(sums, dice[:, None] * sums[:, -1:], right=True)
    last = shares.shape[-1] - 1 - (shares > 0).flip(-1).int().argmax(-1, keepdim=True)  # rounding must not pass it
    return torch.minimum(place, last).squeeze(1)


def barred(scores: Tensor, written: Sequence[Sequence[int]], length: int) -> Tensor:
    """The scores without tokens that would end a run of `length` that a row has written before, if any others are left."""
    scores = scores.clone()
    for row, tokens in enumerate(written):
        if (gone := _again(tokens, length)) and len(set(gone)) < scores.shape[-1]:
            scores[row, gone] = float("-inf")
    return scores


def _again(tokens: Sequence[int], length: int) -> list[int]:
    """What followed the last tokens whenever they stood there before."""
    lead = list(tokens[len(tokens) - length + 1 :]) if length > 1 else []
    starts = range(len(tokens) - length + 1)
    return [tokens[at + length - 1] for at in starts if list(tokens[at : at + length - 1]) == lead]
