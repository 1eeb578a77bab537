"""Disk usage of a run: checkpoints while it trains, the weights, tokenizer and logs when it is done."""

import json
from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import torch
from torch import nn

from ..train.config import TrainConfig
from .memory import OptimizerState, TensorSpec

METRICS_ROW_BYTES = 220  # of one row of metrics.jsonl
SMALL_FILES_BYTES = 4096  # progress, manifest, card and config
SAFETENSORS_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
}


class DiskUsage(msgspec.Struct, frozen=True):
    """Bytes on disk."""

    weights: int
    checkpoint: int  # weights and optimizer state
    peak: int  # during the run
    final: int  # after the run
    corpus: int


def estimate_disk(
    model: nn.Module, optimizer_state: OptimizerState, train: TrainConfig, steps: int, tokenizer_bytes: int, corpus_bytes: int
) -> DiskUsage:
    """Disk usage of a run of `steps` steps."""
    weights = safetensors_bytes(
        {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in model.state_dict().items()}
    )
    checkpoint = weights + safetensors_bytes(optimizer_state.tensors) + safetensors_bytes({}) + SMALL_FILES_BYTES
    first_checkpoint = weights + 2 * safetensors_bytes({}) + SMALL_FILES_BYTES  # without optimizer state, before the first step
    saves = [first_checkpoint] + [checkpoint] * (len(range(train.save_every, steps, train.save_every)) + 1)
    other_files = tokenizer_bytes + SMALL_FILES_BYTES + METRICS_ROW_BYTES * (steps // train.log_every)
    best_weights = weights * (2 if train.early_stopping_patience else 0)  # the best one, and one being written
    num_kept = max(train.save_total_limit, train.average_checkpoints)
    final_usage = sum(saves[-num_kept:]) + weights
    return DiskUsage(
        weights,
        checkpoint,
        max(_max_window_sum(saves, num_kept + 1), final_usage) + best_weights + other_files,
        weights + other_files,
        corpus_bytes,
    )


def safetensors_bytes(tensors: Mapping[str, TensorSpec]) -> int:
    """Exact size of a safetensors file with these tensors."""
    header, offset = {}, 0
    for name, spec in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    header_bytes = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-header_bytes // 8) * 8 + sum(prod(spec.shape) * spec.dtype.itemsize for spec in tensors.values())


def _max_window_sum(sizes: Sequence[int], window: int) -> int:
    """Maximum sum of `window` consecutive checkpoints (a new one is written before the oldest is removed).

    All sizes but the first are equal, so two windows suffice.
    """
    return max(sum(sizes[:window]), sum(sizes[1 : window + 1]))
