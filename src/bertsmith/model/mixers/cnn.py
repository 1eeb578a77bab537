"""Filters over neighbouring tokens, of several widths side by side: TextCNN (Kim 2014)."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ...config import Count, Variant
from ...errors import BadInput
from ..packing import Layout
from .base import Mixer


class Convolution(Variant, frozen=True):
    widths: Annotated[tuple[Count, ...], Meta(min_length=1), "tokens a filter sees; the model's width is shared among them"] = (
        3, 4, 5,
    )  # fmt: skip
    causal: Annotated[bool, "see only what came before"] = False
    activation: Annotated[Literal["relu", "tanh"], "of what a filter finds"] = "relu"

    def build(self, width: int) -> Mixer:
        return Filters(self, width)


class Filters(Mixer):
    """As many numbers out as in; beyond a sequence's ends there are zeros."""

    def __init__(self, config: Convolution, width: int) -> None:
        super().__init__()
        if len(config.widths) > width:
            raise BadInput(f"a width of {width} is less than one for each of {len(config.widths)} filters; raise model.width")
        each, rest = divmod(width, len(config.widths))
        counts = [each + (number < rest) for number in range(len(config.widths))]
        self.filters = nn.ModuleList(nn.Linear(seen * width, n) for seen, n in zip(config.widths, counts, strict=True))
        self.before = [seen - 1 if config.causal else (seen - 1) // 2 for seen in config.widths]
        self.widths = config.widths
        self.activation = F.relu if config.activation == "relu" else torch.tanh

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        first = max(self.before)
        after = max(seen - 1 - before for seen, before in zip(self.widths, self.before, strict=True))
        around = torch.stack([_shifted(x, layout.owner, offset) for offset in range(-first, after + 1)], 1)
        found = [
            one(around[:, first - before : first - before + seen].flatten(1))
            for one, before, seen in zip(self.filters, self.before, self.widths, strict=True)
        ]
        return self.activation(torch.cat(found, -1))


def _shifted(x: Tensor, owner: Tensor, offset: int) -> Tensor:
    """(tokens, width): of each token the one so far behind it, or zeros where that is of another sequence."""
    place = torch.arange(x.shape[0], device=x.device) + offset
    inside = place.clamp(0, x.shape[0] - 1)
    same = (owner[inside] == owner) & (inside == place)
    return x[inside] * same[:, None].to(x.dtype)
