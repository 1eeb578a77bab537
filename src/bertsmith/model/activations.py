"""What stands between two linear layers, by name."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["gelu", "gelu-tanh", "relu", "silu"]
PoolActivation = Literal["tanh", "relu", "gelu", "none"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # in its erf form, as BERT
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # as ALBERT; others call it gelu_new
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
