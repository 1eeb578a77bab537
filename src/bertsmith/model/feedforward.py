"""What each token thinks by itself: width to inner width and back, with an activation between."""

from typing import Annotated

from torch import Tensor, nn

from ..config import Config, Count
from .activations import ACTIVATIONS, Activation


class FeedForward(Config, frozen=True):
    inner: Annotated[Count, "inner width"] = 3072
    activation: Annotated[Activation, "here and in the heads of pre-training: GELU by erf, as BERT, by tanh, as ALBERT"] = (
        "gelu"
    )

    def build(self, width: int) -> nn.Module:
        return Fed(self, width)


class Fed(nn.Module):
    def __init__(self, config: FeedForward, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, config.inner), nn.Linear(config.inner, width)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))
