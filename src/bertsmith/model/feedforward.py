"""What each token thinks by itself: width to inner width and back, with GELU in its erf form between."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Config, Count


class FeedForward(Config, frozen=True):
    inner: Annotated[Count, "inner width"] = 3072

    def build(self, width: int) -> nn.Module:
        return Fed(self, width)


class Fed(nn.Module):
    def __init__(self, config: FeedForward, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, config.inner), nn.Linear(config.inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))
