"""A model: an encoder, and the heads it was trained with, by name."""

from typing import Self

import msgspec
import torch
from torch import Tensor, nn

from ..config import Config
from .encoder import Encoder, EncoderConfig
from .heads import HeadConfig, entropy
from .types import Inputs


class ModelConfig(Config, frozen=True):
    """The record of a built model: what `config.json` holds."""

    encoder: EncoderConfig
    vocabulary: int
    heads: dict[str, HeadConfig] = msgspec.field(default_factory=dict)


class Model(nn.Module):
    still: tuple[nn.Module, ...] = ()  # parts that drop nothing out, even in training

    def __init__(self, config: ModelConfig, drawn: bool = True) -> None:
        """`drawn=False` leaves the weights as they come, for somebody who has others to put there."""
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder, config.vocabulary)
        heads = {name: head.build(config.encoder, config.vocabulary) for name, head in config.heads.items()}
        self.heads = nn.ModuleDict(heads)
        for module in self.modules() if drawn else ():
            _initialise(module, config.encoder.deviation)

    def forward(self, inputs: Inputs, kept: list[Tensor] | None = None) -> Tensor:
        """(tokens, width): hidden states of every token; those of every layer go into `kept`, if somebody wants them."""
        return self.encoder(inputs, kept)

    def scores(self, head: str, rows: Tensor) -> Tensor:
        if head not in self.heads:
            raise KeyError(f"this model has no head {head!r}, only {', '.join(self.heads) or 'none'}; train one first")
        return self.heads[head](rows, self.encoder)

    def entropy(self, head: str, rows: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of a head's scores, and how many answers came first."""
        own = getattr(self.heads[head], "entropy", None) if head in self.heads else None
        return own(rows, self.encoder, answers) if own else entropy(self.scores(head, rows), answers)

    def train(self, mode: bool = True) -> Self:
        """As ever, but for what is kept still."""
        super().train(mode)
        for part in self.still:
            part.eval()
        return self

    def compile_parts(self) -> None:
        """The encoder as one graph; what follows depends on how many words are hidden, and changes with every batch."""
        self.encoder.stack.compile(dynamic=True)


def built(config: ModelConfig, seed: int) -> Model:
    """A new model: the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(config)


def _initialise(module: nn.Module, deviation: float) -> None:
    """Truncated normal, cut at two deviations; biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
