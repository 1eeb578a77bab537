"""The disk a run takes: checkpoints while it trains, the weights and their words when it is done."""

import json
from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import torch
from torch import nn

from ..train.config import TrainConfig
from .memory import OptimizerState, TensorSpec

METRICS_ROW_BYTES = 220  # bytes of a row of metrics.jsonl
SMALL_FILES_BYTES = 4096  # of progress, manifest, card and config
SAFETENSORS_DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
}


class DiskUsage(msgspec.Struct, frozen=True):
    """Bytes."""

    weights: int
    checkpoint: int  # weights and the optimizer's state
    most: int  # at once, while the run lasts
    left: int  # when it is done
    corpus: int


def estimate_disk(
    model: nn.Module, optimizer_state: OptimizerState, train: TrainConfig, steps: int, tokenizer_bytes: int, corpus_bytes: int
) -> DiskUsage:
    weights = safetensors_bytes(
        {name: TensorSpec(tuple(value.shape), value.dtype) for name, value in model.state_dict().items()}
    )
    checkpoint = weights + safetensors_bytes(optimizer_state.tensors) + safetensors_bytes({}) + SMALL_FILES_BYTES
    first = weights + 2 * safetensors_bytes({}) + SMALL_FILES_BYTES  # before the first step there is no state
    saves = [first] + [checkpoint] * (len(range(train.save_every, steps, train.save_every)) + 1)
    words = tokenizer_bytes + SMALL_FILES_BYTES + METRICS_ROW_BYTES * (steps // train.log_every)
    best = weights * (2 if train.stop else 0)  # and one being written
    keep = max(train.keep, train.average)
    ending = sum(saves[-keep:]) + weights
    return DiskUsage(
        weights, checkpoint, max(_max_window_sum(saves, keep + 1), ending) + best + words, weights + words, corpus_bytes
    )


def safetensors_bytes(tensors: Mapping[str, TensorSpec]) -> int:
    """The size of a safetensors file of them, to the byte."""
    header, at = {}, 0
    for name, slot in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[slot.dtype],
            "shape": list(slot.shape),
            "data_offsets": [at, at + slot.nbytes],
        }
        at += slot.nbytes
    text = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-text // 8) * 8 + sum(prod(slot.shape) * slot.dtype.itemsize for slot in tensors.values())


def _max_window_sum(sizes: Sequence[int], window: int) -> int:
    """The most of so many in a row: a checkpoint is written before the oldest goes. All but the first are alike."""
    return max(sum(sizes[:window]), sum(sizes[1 : window + 1]))
