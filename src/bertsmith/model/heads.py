"""What turns hidden states into scores: (rows, width) -> (rows, answers)."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Count, Variant

if TYPE_CHECKING:
    from .encoder import Encoder, EncoderConfig


class WordHead(Variant, frozen=True, tag="words"):
    """A score for every word, by the table of token embeddings."""

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "WordScores":
        return WordScores(encoder, vocabulary)


class LabelHead(Variant, frozen=True, tag="labels"):
    """A score for every label, of the pooled row that stands for the text."""

    labels: Annotated[Count, "how many there are"]

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "LabelScores":
        return LabelScores(encoder.width, self.labels)


HeadConfig = WordHead | LabelHead


class WordScores(nn.Module):
    def __init__(self, config: "EncoderConfig", vocabulary: int) -> None:
        super().__init__()
        self.transform, self.norm = nn.Linear(config.width, config.width), config.layer_norm()
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        # The table is the encoder's and not an attribute: tied weights stay one tensor in the checkpoint.
        return F.linear(self.norm(F.gelu(self.transform(rows))), encoder.tokens.weight, self.bias)


class LabelScores(nn.Module):
    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, labels)

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        return self.score(encoder.pool(rows))
