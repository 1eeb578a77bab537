"""One token for each row of scores: the likeliest, or one that dice choose among the likely."""

from collections.abc import Sequence

import torch
from torch import Tensor

TOP_P_CANDIDATES = (
    1024  # the likeliest, among which top_p is looked for first: to sort a whole vocabulary takes longer than a small model
)

MIN_TEMPERATURE = torch.finfo(torch.float32).tiny


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float, top_k: int | None, top_p: float) -> Tensor:
    """(rows, vocabulary) and (rows,) of [0, 1) in float64 to (rows,): the token where the sum of shares passes the die.

    The temperature comes first, then top_k, then top_p of what that left; the token that reaches top_p is still in.
    """
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, MIN_TEMPERATURE)  # no temperature makes it overflow
    if top_k is None and top_p >= 1:
        return _invert_cdf(logits.softmax(-1), uniforms)
    best, ids = _top_candidates(logits, top_k, top_p)
    shares = (best - (best if top_k else logits).logsumexp(-1, keepdim=True)).exp()
    before = shares.cumsum(-1) - shares
    return ids.gather(1, _invert_cdf(shares.masked_fill(before >= top_p, 0.0), uniforms)[:, None]).squeeze(1)


def _top_candidates(logits: Tensor, top_k: int | None, top_p: float) -> tuple[Tensor, Tensor]:
    """The likeliest in order, and their ids: as many as can matter."""
    best, ids = logits.topk(min(top_k or TOP_P_CANDIDATES, logits.shape[-1]))
    if top_k is None and bool(((best - logits.logsumexp(-1, keepdim=True)).exp().sum(-1) < top_p).any()):
        best, ids = logits.sort(-1, descending=True)
    return best, ids


def _invert_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """(rows,): the first place at which the sum of the shares is above the die's share of them all."""
    sums = probs.double().cumsum(-1)
    place = torch.searchsorted(sums, uniforms[:, None] * sums[:, -1:], right=True)
    last = probs.shape[-1] - 1 - (probs > 0).flip(-1).int().argmax(-1, keepdim=True)  # rounding must not pass it
    return torch.minimum(place, last).squeeze(1)


def ban_ngrams(logits: Tensor, generated: Sequence[Sequence[int]], ngram_size: int) -> Tensor:
    """The scores without tokens that would end a run of `length` that a row has written before, if any others are left."""
    logits = logits.clone()
    for row, tokens in enumerate(generated):
        if (gone := _banned_tokens(tokens, ngram_size)) and len(set(gone)) < logits.shape[-1]:
            logits[row, gone] = float("-inf")
    return logits


def _banned_tokens(tokens: Sequence[int], ngram_size: int) -> list[int]:
    """What followed the last tokens whenever they stood there before."""
    lead = list(tokens[len(tokens) - ngram_size + 1 :]) if ngram_size > 1 else []
    starts = range(len(tokens) - ngram_size + 1)
    return [tokens[at + ngram_size - 1] for at in starts if list(tokens[at : at + ngram_size - 1]) == lead]
