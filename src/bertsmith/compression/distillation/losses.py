"""Losses between the inner states of student and teacher, (rows,) each: the trainer takes their mean over an update.

The soft labels are in `objectives.task_losses`.

- hidden_state_loss, cosine_loss: hidden states (TinyBERT, Jiao et al. 2020; DistilBERT, Sanh et al. 2019)
- attention_loss: scores before the softmax (TinyBERT)
- relation_loss: KL of scaled dot products of queries, keys or values (MiniLM, Wang et al. 2020 and 2021)
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...model.packing import Layout


def hidden_state_loss(hidden_states: Tensor, teacher_states: Tensor) -> Tensor:
    """(rows, dim) twice -> (rows,): mean squared error over the dimensions."""
    return (hidden_states.float() - teacher_states.float()).square().mean(-1)


def cosine_loss(hidden_states: Tensor, teacher_states: Tensor) -> Tensor:
    """(rows, dim) twice -> (rows,): 1 - cosine similarity."""
    return 1 - F.cosine_similarity(hidden_states.float(), teacher_states.float(), dim=-1)


def attention_loss(scores: Tensor, teacher_scores: Tensor, mask: Tensor, layout: Layout) -> Tensor:
    """(sequences, heads, queries, keys) twice -> (tokens,): squared error, mean over heads and visible keys.

    mask: broadcast to the same shape, True where the query may see the key. For sequences of one length the mean over tokens is
    the MSE of TinyBERT (equation 7).
    """
    visible = mask.expand_as(scores)
    difference = (scores.float() - teacher_scores.float()).masked_fill(~visible, 0.0)
    counts = visible.sum((1, -1))  # (sequences, queries): heads times keys
    return layout.unpad(difference.square().sum((1, -1)) / counts.clamp(min=1))


def relation_loss(states: Tensor, teacher_states: Tensor, num_heads: int, layout: Layout) -> Tensor:
    """(tokens, dim) and (tokens, teacher_dim) -> (tokens,): KL of self-attention relations, mean over relation heads.

    The relation of vectors x (queries, keys or values), divided into `num_heads` relation heads, is
    softmax(x x^T / sqrt(dim / num_heads)) within each sequence (MiniLMv2, Wang et al. 2021, section 3.1).
    """
    log_p, log_q = (_log_relations(x, num_heads, layout) for x in (teacher_states, states))
    return layout.unpad(_row_divergence(log_p, log_q, layout))


def distribution_loss(scores: Tensor, teacher_scores: Tensor, mask: Tensor, layout: Layout) -> Tensor:
    """(sequences, heads, queries, keys) twice -> (tokens,): KL of attention distributions, mean over heads (MiniLM, eq. 7)."""
    log_p, log_q = (x.float().masked_fill(~mask, float("-inf")).log_softmax(-1) for x in (teacher_scores, scores))
    return layout.unpad(_row_divergence(log_p, log_q, layout))


def _log_relations(x: Tensor, num_heads: int, layout: Layout) -> Tensor:
    """(tokens, dim) -> (sequences, num_heads, max_seqlen, max_seqlen): log-softmax of the scaled dot products."""
    heads = layout.pad(x.float().unflatten(-1, (num_heads, -1))).transpose(1, 2)
    scores = heads @ heads.mT * heads.shape[-1] ** -0.5
    return scores.masked_fill(~layout.padding_mask()[:, None, None], float("-inf")).log_softmax(-1)


def _row_divergence(log_p: Tensor, log_q: Tensor, layout: Layout) -> Tensor:
    """(sequences, max_seqlen): KL(p || q) of each query, mean over heads; rows of padding are undefined."""
    is_impossible = log_p == float("-inf")
    log_p, log_q = (x.masked_fill(is_impossible, 0.0) for x in (log_p, log_q))
    terms = torch.where(is_impossible, 0.0, log_p.exp() * (log_p - log_q))
    return terms.sum(-1).mean(1)
