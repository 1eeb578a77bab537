"""Which numbers dropout leaves: a hash of a seed and of where each stands, so that nothing is kept for the way back."""

import torch
import triton
import triton.language as tl


def draw_seeds() -> tuple[int, int]:
    """Two seeds from torch's generator on the host: no wait for the device, and the same after `torch.manual_seed`."""
    first, second = torch.randint(2**31 - 1, (2,), device="cpu").tolist()
    return first, second


def drop_threshold(dropout: float) -> int:
    """What a hash of 32 bits must reach to be left."""
    return min(int(dropout * 2**32), 2**32 - 1)


@triton.jit
def keep_mask(offsets, seed1, seed2, threshold):
    """Whether each of these places is left: two rounds of a 32-bit mixer, with a seed before each."""
    bits = offsets.to(tl.uint32) * 0x9E3779B9 + seed1
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = (bits ^ (bits >> 16)) + seed2
    bits = (bits ^ (bits >> 16)) * 0x21F0AAAD
    bits = (bits ^ (bits >> 15)) * 0x735A2D97
    bits = bits ^ (bits >> 15)
    return bits >= threshold
