"""Whom hashes bring together: how many a token meets, and how much of what it would look at is among them."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...batch import Inputs
from ...model import Model
from .layer import ReformerAttention
from .lsh import unit_norm


class BucketStats(NamedTuple):
    """Of one layer, a number for each head."""

    mean_neighbors: list[float]  # others that a token meets in all rounds together, on average
    isolated_fraction: list[float]  # share of the tokens that meet nobody, though others are there
    attention_recall: list[float]  # share of the weight that one bucket for all would give to those it meets


@torch.inference_mode()
def compute_bucket_stats(model: Model, inputs: Inputs) -> list[BucketStats]:
    """Of every layer that hashes. The squares of all scores are looked at: give texts of a few thousand tokens."""
    found: list[BucketStats] = []
    mixers = [mixer for mixer in model.encoder.stack.mixers if isinstance(mixer, ReformerAttention) and mixer.hashes]
    hooks = [mixer.register_forward_pre_hook(partial(_collect_stats, found)) for mixer in dict.fromkeys(mixers)]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _collect_stats(stats: list[BucketStats], mixer: ReformerAttention, hook_args: tuple[Tensor, ...]) -> None:
    x, layout = hook_args[0], hook_args[1]
    qk = mixer.project(x).unflatten(-1, (2, mixer.config.heads, -1)).unbind(-3)[0].transpose(0, 1)
    _, code = mixer.sort_by_bucket(qk, layout)  # type: ignore[arg-type]
    owner, place = layout.seq_id, layout.position  # type: ignore[attr-defined]
    others = (owner == owner[:, None]) & ~torch.eye(len(owner), dtype=torch.bool, device=x.device)
    others = others & (place < place[:, None]) if mixer.config.causal else others
    together = torch.zeros(len(qk), *others.shape, dtype=torch.bool, device=x.device)
    for each in code:
        together |= (each[:, :, None] - each[:, None]).abs() <= mixer.config.reach
    together &= others
    weights = (qk @ unit_norm(qk).mT).masked_fill(~others, float("-inf")).softmax(-1)
    anyone, met = others.any(-1), together.sum(-1)[:, others.any(-1)].float()
    caught = (weights * together).sum(-1)[:, anyone]
    stats.append(BucketStats(met.mean(-1).tolist(), (met == 0).float().mean(-1).tolist(), caught.mean(-1).tolist()))
