"""The disk a run takes: checkpoints while it trains, the weights and their words when it is done."""

import json
from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import torch
from torch import nn

from ..train.config import Train
from .memory import Kept, Slot

ROW = 220  # bytes of a row of metrics.jsonl
WORDS = 4096  # of progress, manifest, card and config
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64"}


class Disk(msgspec.Struct, frozen=True):
    """Bytes."""

    weights: int
    checkpoint: int  # weights and the optimizer's state
    most: int  # at once, while the run lasts
    left: int  # when it is done
    corpus: int


def taken(model: nn.Module, kept: Kept, train: Train, steps: int, tokenizer: int, corpus: int) -> Disk:
    weights = stored({name: Slot(tuple(value.shape), value.dtype) for name, value in model.state_dict().items()})
    checkpoint = weights + stored(kept.slots) + stored({}) + WORDS
    first = weights + 2 * stored({}) + WORDS  # before the first step there is no state
    saves = [first] + [checkpoint] * (len(range(train.save_every, steps, train.save_every)) + 1)
    words = tokenizer + WORDS + ROW * (steps // train.log_every)
    best = weights * (2 if train.stop else 0)  # and one being written
    keep = max(train.keep, train.average)
    ending = sum(saves[-keep:]) + weights
    return Disk(weights, checkpoint, max(_window(saves, keep + 1), ending) + best + words, weights + words, corpus)


def stored(tensors: Mapping[str, Slot]) -> int:
    """The size of a safetensors file of them, to the byte."""
    header, at = {}, 0
    for name, slot in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        header[name] = {"dtype": NAMES[slot.dtype], "shape": list(slot.shape), "data_offsets": [at, at + slot.bytes]}
        at += slot.bytes
    text = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-text // 8) * 8 + sum(prod(slot.shape) * slot.dtype.itemsize for slot in tensors.values())


def _window(sizes: Sequence[int], width: int) -> int:
    """The most of so many in a row: a checkpoint is written before the oldest goes. All but the first are alike."""
    return max(sum(sizes[:width]), sum(sizes[1 : width + 1]))
