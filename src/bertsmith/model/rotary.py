"""Rotary positions: queries and keys are turned by their places, so that a product of two depends on their distance."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadInput
from . import kernels


class Rotary(nn.Module):
    """Su et al. 2021, on halves: number i of the first half turns with number i of the second."""

    def __init__(self, width: int, period: float) -> None:
        super().__init__()
        if width % 2:
            raise BadInput(f"rotary positions turn pairs of numbers: heads of {width} are not even; change model.mixer.heads")
        self.width, self.period = width, period
        self.held = torch.empty(0, width)  # made as needed, not part of a checkpoint

    def turns(self, longest: int, device: torch.device) -> Tensor:
        """(places, width of a head) in float32, for at least `longest` places: cosines, then sines."""
        if len(self.held) < longest or self.held.device != device:
            with torch.inference_mode(False):  # it may serve training later
                speeds = self.period ** -(torch.arange(0, self.width, 2, device=device).double() / self.width)
                angles = torch.arange(1 << (longest - 1).bit_length(), device=device)[:, None] * speeds
                self.held = torch.cat([angles.cos(), angles.sin()], 1).float()
        return self.held


def turned(qkv: Tensor, turns: Tensor, places: Tensor, heads: int) -> Tensor:
    """(tokens, 3 x width) with queries and keys turned."""
    if kernels.serves(qkv):
        from .kernels.rotary import turned as in_place

        return in_place(qkv, turns, places, heads)
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).unbind(-3)
    cosine, sine = turns[places][:, None].to(qkv.dtype).chunk(2, -1)
    return torch.stack([_turn(q, cosine, sine), _turn(k, cosine, sine), v], -3).flatten(-3)


def spun(x: Tensor, turns: Tensor, by: Tensor) -> Tensor:
    """(.., heads, width of a head), turned on by so many places, or back; all `by` (..) are less than those in `turns`, and
    what heads are wider than that is zeros."""
    cosine, sine = turns[by.abs()][..., None, :].chunk(2, -1)
    found, gap = _turn(x[..., : turns.shape[1]], cosine, sine * by.sign()[..., None, None]), x.shape[-1] - turns.shape[1]
    return (F.pad(found, (0, gap)) if gap else found).to(x.dtype)


def _turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
