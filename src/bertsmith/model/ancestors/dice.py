"""The dice of `bertsmith.random` drawn on a tensor's own device: the same bits, wherever."""

import numpy as np
import torch
from torch import Tensor

from ...random import bits

# 64-bit words are signed here: products and xor are the same, but a shift to the right must not bring the sign along.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def drawn(seed: int, purpose: str, epoch: int, first: int, count: int, device: torch.device) -> Tensor:
    """`random.bits(seed, purpose, epoch, range(first, first + count))` as signed words."""
    state = int(bits(seed, purpose, epoch).astype(np.int64))
    counters = torch.arange(first, first + count, device=device)
    return _mixed(_mixed(counters.mul_(_STEP).add_(_STEP)).bitwise_xor_(state))


def top(dice: Tensor, width: int) -> Tensor:
    """The `width` bits at the top of each, as a whole number."""
    return (dice >> (64 - width)).bitwise_and_((1 << width) - 1)


def _mixed(x: Tensor) -> Tensor:
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        x.bitwise_xor_(top(x, 64 - shift))
        if factor != 1:
            x.mul_(factor)
    return x
