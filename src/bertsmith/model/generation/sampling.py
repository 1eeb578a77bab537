"""Sampling a token from logits: temperature, top-k, top-p (nucleus), and the ban on repeated n-grams."""

from collections.abc import Sequence

import torch
from torch import Tensor

TOP_P_CANDIDATES = 1024  # top_p first tries this many tokens: sorting a whole vocabulary takes longer than a small model

MIN_TEMPERATURE = torch.finfo(torch.float32).tiny


def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float, top_k: int | None, top_p: float) -> Tensor:
    """(rows,): tokens sampled by inverting the CDF at `uniforms`; logits (rows, vocab), uniforms (rows,) float64 in [0, 1).

    Temperature is applied first, then top_k, then top_p of the rest; the token that reaches top_p is included.
    """
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / max(
        temperature, MIN_TEMPERATURE
    )  # max 0, so that a low temperature cannot overflow
    if top_k is None and top_p >= 1:
        return _invert_cdf(logits.softmax(-1), uniforms)
    top_logits, token_ids = _top_candidates(logits, top_k, top_p)
    probs = (top_logits - (top_logits if top_k else logits).logsumexp(-1, keepdim=True)).exp()
    cumulative_before = probs.cumsum(-1) - probs
    return token_ids.gather(1, _invert_cdf(probs.masked_fill(cumulative_before >= top_p, 0.0), uniforms)[:, None]).squeeze(1)


def _top_candidates(logits: Tensor, top_k: int | None, top_p: float) -> tuple[Tensor, Tensor]:
    """The most likely logits in descending order and their ids: at least all that top_k and top_p keep."""
    top_logits, token_ids = logits.topk(min(top_k or TOP_P_CANDIDATES, logits.shape[-1]))
    if top_k is None and bool(((top_logits - logits.logsumexp(-1, keepdim=True)).exp().sum(-1) < top_p).any()):
        top_logits, token_ids = logits.sort(-1, descending=True)
    return top_logits, token_ids


def _invert_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """(rows,): first index whose cumulative probability exceeds uniform * total; probs need not sum to one."""
    cdf = probs.double().cumsum(-1)
    index = torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True)
    last = (
        probs.shape[-1] - 1 - (probs > 0).flip(-1).int().argmax(-1, keepdim=True)
    )  # last index with probability above 0, lest rounding go beyond it
    return torch.minimum(index, last).squeeze(1)


def ban_ngrams(logits: Tensor, generated: Sequence[Sequence[int]], ngram_size: int) -> Tensor:
    """Logits with -inf for tokens that would repeat an n-gram of the row's generated tokens, unless that bans all of them."""
    logits = logits.clone()
    for row, tokens in enumerate(generated):
        if (banned := _banned_tokens(tokens, ngram_size)) and len(set(banned)) < logits.shape[-1]:
            logits[row, banned] = float("-inf")
    return logits


def _banned_tokens(tokens: Sequence[int], ngram_size: int) -> list[int]:
    """Tokens that followed earlier occurrences of the last ngram_size - 1 tokens."""
    prefix = list(tokens[len(tokens) - ngram_size + 1 :]) if ngram_size > 1 else []
    positions = range(len(tokens) - ngram_size + 1)
    return [
        tokens[position + ngram_size - 1]
        for position in positions
        if list(tokens[position : position + ngram_size - 1]) == prefix
    ]
