"""Counter-based dropout masks: a hash of seed and element offset, recomputed in the backward pass instead of saved."""

import torch
import triton
import triton.language as tl


def draw_seeds() -> tuple[int, int]:
    """Two seeds from torch's CPU generator: no GPU synchronization, and reproducible with `torch.manual_seed`."""
    seed1, seed2 = torch.randint(2**31 - 1, (2,), device="cpu").tolist()
    return seed1, seed2


def drop_threshold(dropout: float) -> int:
    """Elements whose 32-bit hash is below this are dropped."""
    return min(int(dropout * 2**32), 2**32 - 1)


@triton.jit
def keep_mask(offsets, seed1, seed2, threshold):
    """Whether the element at each offset is kept: two rounds of a 32-bit integer hash, with a seed before each."""
    bits = offsets.to(tl.uint32) * 0x9E3779B9 + seed1
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = (bits ^ (bits >> 16)) + seed2
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits = (bits ^ (bits >> 15)) * 0x735A2D97
    bits = bits ^ (bits >> 15)
    return bits >= threshold
