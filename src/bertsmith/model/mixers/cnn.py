"""TextCNN (Kim 2014) as a mixer: 1-D convolutions of several kernel sizes over the tokens, concatenated.

The sequence is pooled by `model.pooling` (max in Kim 2014).
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ...config import PosInt
from ...errors import UserError
from ..linear import Linear
from ..packing import Layout
from .base import BaseMixerConfig, LayerState, Mixer


class Cnn(BaseMixerConfig, frozen=True, tag="cnn"):
    """Convolutions (TextCNN, Kim 2014) of the given kernel sizes over the tokens of each sequence."""

    kernel_sizes: Annotated[
        tuple[PosInt, ...],
        Meta(min_length=1),
        "kernel sizes in tokens; hidden_size is divided among them (3, 4, 5 in Kim 2014)",
    ] = (3, 4, 5)
    causal: Annotated[bool, "use only earlier tokens (left padding)"] = False
    dilation: Annotated[PosInt, "distance in tokens between the inputs of a kernel (1: adjacent tokens)"] = 1
    stride: Annotated[
        PosInt, "distance in tokens between the windows; the tokens of a stride share the output of its first"
    ] = 1
    hidden_act: Annotated[Literal["relu", "tanh"], "activation after the convolution"] = "relu"

    def build(self, hidden_size: int) -> Mixer:
        return CnnMixer(self, hidden_size)


class CnnMixer(Mixer):
    """(tokens, hidden_size) in and out: the output channels are split among the kernel sizes. Sequences are zero-padded."""

    def __init__(self, config: Cnn, hidden_size: int) -> None:
        super().__init__()
        if len(config.kernel_sizes) > hidden_size:
            raise UserError(
                f"a hidden_size of {hidden_size} is less than one channel for each of {len(config.kernel_sizes)} kernel sizes; "
                "raise model.hidden_size"
            )
        base, remainder = divmod(hidden_size, len(config.kernel_sizes))
        out_channels = [base + (i < remainder) for i in range(len(config.kernel_sizes))]
        self.filters = nn.ModuleList(
            Linear(kernel_size * hidden_size, channels)
            for kernel_size, channels in zip(config.kernel_sizes, out_channels, strict=True)
        )
        self.left_padding = [
            kernel_size - 1 if config.causal else (kernel_size - 1) // 2 for kernel_size in config.kernel_sizes
        ]  # in steps of the dilation
        self.kernel_sizes, self.dilation, self.stride = config.kernel_sizes, config.dilation, config.stride
        self.activation = F.relu if config.hidden_act == "relu" else torch.tanh

    def forward(self, x: Tensor, layout: Layout, state: LayerState | None = None) -> Tensor:
        left = max(self.left_padding)
        right = max(
            kernel_size - 1 - conv_left for kernel_size, conv_left in zip(self.kernel_sizes, self.left_padding, strict=True)
        )
        # With a stride, only the windows at positions 0, stride, 2 * stride, .. of each sequence are computed.
        starts = None if self.stride == 1 else (layout.position % self.stride == 0).nonzero().squeeze(1)
        offsets = range(-left, right + 1)
        neighbors = torch.stack([_shift(x, layout.seq_id, self.dilation * offset, starts) for offset in offsets], 1)
        features = [
            conv(neighbors[:, left - conv_left : left - conv_left + kernel_size].flatten(1))
            for conv, conv_left, kernel_size in zip(self.filters, self.left_padding, self.kernel_sizes, strict=True)
        ]
        out = self.activation(torch.cat(features, -1))
        return out if starts is None else out[(layout.position % self.stride == 0).cumsum(0) - 1]


def _shift(x: Tensor, seq_id: Tensor, offset: int, rows: Tensor | None = None) -> Tensor:
    """(rows, hidden_size): row i is x[i + offset], or zeros where that token is of another sequence; `rows`: all tokens."""
    rows = torch.arange(x.shape[0], device=x.device) if rows is None else rows
    index = rows + offset
    clamped = index.clamp(0, x.shape[0] - 1)
    is_same_seq = (seq_id[clamped] == seq_id[rows]) & (clamped == index)
    return x[clamped] * is_same_seq[:, None].to(x.dtype)
