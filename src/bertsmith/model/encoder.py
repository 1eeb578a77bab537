"""An encoder: tokens, places and segments to vectors, then a stack of blocks."""

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Chance, Config, Count, Positive
from ..errors import BadInput
from .activations import ACTIVATIONS, PoolActivation
from .feedforward import FeedForward
from .join import Join
from .mixers import Dense, MixerConfig
from .stack import Stack, halved
from .types import Inputs


class EncoderConfig(Config, frozen=True):
    """What a recipe calls `model`."""

    layers: Annotated[Count, "blocks, one above another"] = 12
    groups: Annotated[Count | None, "different blocks, each called several times in turn, as ALBERT; else all differ"] = None
    width: Annotated[Count, "numbers a token is made of"] = 768
    embedding: Annotated[Count | None, "numbers in the tables, projected to the width after their norm; else the width"] = None
    mixer: Annotated[MixerConfig, "how tokens exchange information"] = Dense()
    feedforward: Annotated[FeedForward, "what each token does by itself"] = FeedForward()
    norm: Annotated[Literal["after", "before"], "after each part, as BERT, or before it"] = "after"
    norm_bias: Annotated[bool, "norms shift as well as scale"] = True
    positions: Annotated[Count, "the longest sequence it can read"] = 512
    table: Annotated[bool, "learn a vector for each position; rotary mixers need none"] = True
    segments: Annotated[Count, "kinds of segment: A and B"] = 2
    dropout: Annotated[Chance, "on embeddings and on what each part adds"] = 0.1
    eps: Annotated[Positive, "of the norms"] = 1e-12
    deviation: Annotated[Positive, "of new weights; narrow models begin to use context sooner with more"] = 0.02
    pooler: Annotated[PoolActivation, "of the row that stands for a text: tanh as BERT, relu DistilBERT, gelu ELECTRA"] = "tanh"

    presets: ClassVar[dict[str, "EncoderConfig"]] = {}

    @property
    def embedded(self) -> int:
        """The width of the tables, and of what is added to them."""
        return self.embedding or self.width

    def layer_norm(self, width: int | None = None) -> nn.LayerNorm:
        return nn.LayerNorm(width or self.width, eps=self.eps, bias=self.norm_bias)

    def join(self, width: int | None = None) -> Join:
        return Join(width or self.width, self.eps, self.norm_bias, self.dropout, self.norm == "before")


def bert(layers: int, width: int) -> EncoderConfig:
    """The sizes of Devlin et al. 2018 and Turc et al. 2019: heads of 64, an inner width of four times the outer."""
    return EncoderConfig(layers=layers, width=width, mixer=Dense(heads=width // 64), feedforward=FeedForward(inner=4 * width))


def albert(layers: int, width: int, heads: int) -> EncoderConfig:
    """The sizes of Lan et al. 2020, as its second release has them: one block, tables of 128, no dropout."""
    fed = FeedForward(inner=4 * width, activation="gelu-tanh")
    return EncoderConfig(
        layers=layers, groups=1, width=width, embedding=128, mixer=Dense(heads=heads), feedforward=fed, dropout=0.0
    )


EncoderConfig.presets.update(
    {
        "bert-tiny": bert(2, 128),
        "bert-mini": bert(4, 256),
        "bert-small": bert(4, 512),
        "bert-medium": bert(8, 512),
        "bert-base": bert(12, 768),
        "bert-large": bert(24, 1024),
        "albert-base": albert(12, 768, 12),
        "albert-large": albert(24, 1024, 16),
        "albert-xlarge": albert(24, 2048, 16),
        "albert-xxlarge": albert(12, 4096, 64),
    }
)


class Encoder(nn.Module):
    def __init__(self, config: EncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(vocabulary, config.embedded)
        self.positions = nn.Embedding(config.positions, config.embedded) if config.table else None
        self.segments = nn.Embedding(config.segments, config.embedded)
        self.norm, self.drop = config.join(config.embedded), nn.Dropout(config.dropout)
        self.widen = nn.Identity() if config.embedding is None else nn.Linear(config.embedding, config.width)
        self.stack = Stack(config)
        self.pooler = nn.Linear(config.width, config.width)

    def forward(self, inputs: Inputs, kept: list[Tensor] | None = None) -> Tensor:
        """(tokens, width), or of those wanted; embedded tokens and what leaves each block go into `kept`, if it is given."""
        x = self._embedded(inputs)
        if kept is not None:
            kept.append(x)
        return self.stack(x, inputs.layout, kept, inputs.wanted)

    def pool(self, rows: Tensor) -> Tensor:
        """(rows, width): what stands for whole texts, from their first tokens."""
        return ACTIVATIONS[self.config.pooler](self.pooler(rows))

    def _embedded(self, inputs: Inputs) -> Tensor:
        limit = self.config.positions
        if inputs.layout.longest > limit:
            raise BadInput(f"a text of {inputs.layout.longest} tokens is longer than the model's {limit} positions; cut it, or "
                           f"build the model with model.positions={inputs.layout.longest}")  # fmt: skip
        segments = inputs.segments
        if segments is None or self.config.segments == 1:  # such a model was never told of a segment B
            segments = torch.zeros_like(inputs.tokens)
        x = F.embedding(inputs.tokens, halved(self.tokens.weight)) + F.embedding(segments, halved(self.segments.weight))
        x = x if self.positions is None else x + F.embedding(inputs.layout.place, halved(self.positions.weight))
        x = x if inputs.nudge is None else x + inputs.nudge
        return self.widen(self.drop(self.norm(x, None)[0]))
