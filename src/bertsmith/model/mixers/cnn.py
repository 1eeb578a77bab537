"""Filters over neighbouring tokens, of several widths side by side: TextCNN (Kim 2014)."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ...config import PosInt, Variant
from ...errors import UserError
from ..packing import Layout
from .base import Mixer


class Cnn(Variant, frozen=True, tag="convolution"):
    widths: Annotated[tuple[PosInt, ...], Meta(min_length=1), "tokens a filter sees; the model's width is shared among them"] = (
        3, 4, 5,
    )  # fmt: skip
    causal: Annotated[bool, "see only what came before"] = False
    activation: Annotated[Literal["relu", "tanh"], "of what a filter finds"] = "relu"

    def build(self, hidden_size: int) -> Mixer:
        return CnnMixer(self, hidden_size)


class CnnMixer(Mixer):
    """As many numbers out as in; beyond a sequence's ends there are zeros."""

    def __init__(self, config: Cnn, hidden_size: int) -> None:
        super().__init__()
        if len(config.widths) > hidden_size:
            raise UserError(
                f"a width of {hidden_size} is less than one for each of {len(config.widths)} filters; raise model.width"
            )
        each, rest = divmod(hidden_size, len(config.widths))
        counts = [each + (number < rest) for number in range(len(config.widths))]
        self.filters = nn.ModuleList(nn.Linear(seen * hidden_size, n) for seen, n in zip(config.widths, counts, strict=True))
        self.left_padding = [seen - 1 if config.causal else (seen - 1) // 2 for seen in config.widths]
        self.kernel_sizes = config.widths
        self.activation = F.relu if config.activation == "relu" else torch.tanh

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        first = max(self.left_padding)
        after = max(seen - 1 - before for seen, before in zip(self.kernel_sizes, self.left_padding, strict=True))
        around = torch.stack([_shift(x, layout.seq_id, offset) for offset in range(-first, after + 1)], 1)
        found = [
            one(around[:, first - before : first - before + seen].flatten(1))
            for one, before, seen in zip(self.filters, self.left_padding, self.kernel_sizes, strict=True)
        ]
        return self.activation(torch.cat(found, -1))


def _shift(x: Tensor, seq_id: Tensor, offset: int) -> Tensor:
    """(tokens, width): of each token the one so far behind it, or zeros where that is of another sequence."""
    place = torch.arange(x.shape[0], device=x.device) + offset
    inside = place.clamp(0, x.shape[0] - 1)
    same = (seq_id[inside] == seq_id) & (inside == place)
    return x[inside] * same[:, None].to(x.dtype)
