"""What turns hidden states into scores: (rows, width) -> (rows, answers)."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Chance, Count, Variant
from . import kernels
from .activations import ACTIVATIONS
from .crf import ChainHead
from .cross import CrossHead
from .features import FeatureHead

if TYPE_CHECKING:
    from .encoder import Encoder, EncoderConfig


class WordHead(Variant, frozen=True, tag="words"):
    """A score for every word, by the table of token embeddings."""

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "WordScores":
        return WordScores(encoder, vocabulary)


class ReplacedHead(Variant, frozen=True, tag="replaced"):
    """One score for every token: above 0 where it was put in the place of another, as ELECTRA's discriminator says."""

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "ReplacedScores":
        return ReplacedScores(encoder)


class LabelHead(Variant, frozen=True, tag="labels"):
    """A score for every label, of the pooled row that stands for the text."""

    labels: Annotated[Count, "how many there are"]

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "LabelScores":
        return LabelScores(encoder.width, self.labels)


class TokenHead(Variant, frozen=True, tag="tokens"):
    """Scores for every token: a tag each, or where an answer begins and ends."""

    outputs: Annotated[Count, "scores a token"]
    dropout: Annotated[Chance, "on what is scored"] = 0.1

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "TokenScores":
        return TokenScores(encoder.width, self.outputs, self.dropout)


class TextHead(Variant, frozen=True, tag="text"):
    """Scores for whole texts, of the pooled row, with dropout before them: what fine-tuning adds."""

    outputs: Annotated[Count, "scores a text"]
    dropout: Annotated[Chance, "on what is scored"] = 0.1

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "TextScores":
        return TextScores(encoder.width, self.outputs, self.dropout)


HeadConfig = WordHead | ReplacedHead | LabelHead | TokenHead | TextHead | FeatureHead | ChainHead | CrossHead


class WordScores(nn.Module):
    def __init__(self, config: "EncoderConfig", vocabulary: int) -> None:
        super().__init__()
        self.transform, self.norm = nn.Linear(config.width, config.embedded), config.layer_norm(config.embedded)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.activation = ACTIVATIONS[config.feedforward.activation]

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        # The table is the encoder's and not an attribute: tied weights stay one tensor in the checkpoint.
        return F.linear(self._transformed(rows), encoder.tokens.weight, self.bias)

    def entropy(self, rows: Tensor, encoder: "Encoder", answers: Tensor) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of these answers, and how many of them came first."""
        if not kernels.serves(rows):
            return entropy(self(rows, encoder), answers)
        from .kernels.entropy import entropy as fused

        kind = rows.dtype
        return fused(self._transformed(rows).to(kind), encoder.tokens.weight.to(kind), self.bias.to(kind), answers)

    def _transformed(self, rows: Tensor) -> Tensor:
        return self.norm(self.activation(self.transform(rows)))


def entropy(scores: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross entropy, and how many answers came first."""
    total = F.cross_entropy(scores.float(), answers, reduction="sum")
    return total, (scores.argmax(-1) == answers).sum()


class ReplacedScores(nn.Module):
    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        self.transform, self.score = nn.Linear(config.width, config.width), nn.Linear(config.width, 1)
        self.activation = ACTIVATIONS[config.feedforward.activation]

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        return self.score(self.activation(self.transform(rows)))


class LabelScores(nn.Module):
    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, labels)

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        return self.score(encoder.pool(rows))


class TokenScores(nn.Module):
    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.drop, self.score = nn.Dropout(dropout), nn.Linear(width, outputs)

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        return self.score(self.drop(rows))


class TextScores(TokenScores):
    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        return super().forward(encoder.pool(rows), encoder)
