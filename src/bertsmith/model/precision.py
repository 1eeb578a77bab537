"""In which numbers the stream of a model is held."""

import torch
from torch import Tensor


def halved(x: Tensor) -> Tensor:
    """In the numbers that a GPU's matrices are multiplied in, if those are not its own: half the memory to move."""
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        return x.to(torch.get_autocast_dtype("cuda"))
    return x
