"""Statistics of LSH attention: how many neighbours a token has, and how much of full attention they cover."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...batch import Inputs
from ...model import Model
from .layer import ReformerAttention
from .lsh import unit_norm


class BucketStats(NamedTuple):
    """Statistics of one layer, one value per head."""

    mean_neighbors: list[float]  # other tokens that a token attends to over all hash rounds, on average
    isolated_fraction: list[float]  # tokens without a neighbour although their sequence has others
    attention_recall: list[float]  # probability mass that full attention gives to the neighbours


@torch.inference_mode()
def compute_bucket_stats(model: Model, inputs: Inputs) -> list[BucketStats]:
    """Of every LSH layer. Computes full attention too: use texts of at most a few thousand tokens."""
    stats: list[BucketStats] = []
    mixers = [mixer for mixer in model.encoder.stack.mixers if isinstance(mixer, ReformerAttention) and mixer.hashes]
    hooks = [mixer.register_forward_pre_hook(partial(_collect_stats, stats)) for mixer in dict.fromkeys(mixers)]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return stats


def _collect_stats(stats: list[BucketStats], mixer: ReformerAttention, hook_args: tuple[Tensor, ...]) -> None:
    x, layout = hook_args[0], hook_args[1]
    qk = mixer.qkv(x).unflatten(-1, (2, mixer.config.num_attention_heads, -1)).unbind(-3)[0].transpose(0, 1)
    _, bucket_rank = mixer.sort_by_bucket(qk, layout)  # type: ignore[arg-type]
    seq_id, position = layout.seq_id, layout.position  # type: ignore[attr-defined]
    others = (seq_id == seq_id[:, None]) & ~torch.eye(len(seq_id), dtype=torch.bool, device=x.device)
    others = others & (position < position[:, None]) if mixer.config.causal else others
    is_neighbor = torch.zeros(len(qk), *others.shape, dtype=torch.bool, device=x.device)
    for ranks in bucket_rank:
        is_neighbor |= (ranks[:, :, None] - ranks[:, None]).abs() <= mixer.config.bucket_window
    is_neighbor &= others
    probs = (qk @ unit_norm(qk).mT).masked_fill(~others, float("-inf")).softmax(-1)
    has_others, num_neighbors = others.any(-1), is_neighbor.sum(-1)[:, others.any(-1)].float()
    recall = (probs * is_neighbor).sum(-1)[:, has_others]
    stats.append(
        BucketStats(num_neighbors.mean(-1).tolist(), (num_neighbors == 0).float().mean(-1).tolist(), recall.mean(-1).tolist())
    )
