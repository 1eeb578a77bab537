"""What turns hidden states into scores: (rows, width) -> (rows, answers)."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

from ...config import Chance, Count, Variant
from ...errors import BadInput
from .. import kernels
from ..embeddings.adaptive import RarityHead
from ..small_matmul import product
from ..sublayers import ACTIVATIONS
from .crf import ChainHead
from .cross_attention import CrossHead
from .electra_generator import GeneratorHead
from .features import FeatureHead
from .hierarchical_softmax import TreeHead

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


HEAD = "words"  # the name of the head that says what is written next


class WordHead(Variant, frozen=True, tag="words"):
    """A score for every word, by the table of token embeddings."""

    transform: Annotated[bool, "a matrix, the activation and a norm before the table, as BERT; GPT has none"] = True
    tied: Annotated[bool, "the table is that of the embeddings; else one of its own"] = True
    bias: Annotated[bool, "a number for every word beside the table"] = True

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "WordScores":
        return WordScores(self, encoder, vocabulary)


class HalfHead(Variant, frozen=True, tag="half"):
    """A score for every word, of half the channels: those that read forward, or those that read backward."""

    tied: Annotated[bool, "the table is that of the embeddings, which have half the width; else one of its own"] = False
    bias: Annotated[bool, "a number for every word beside the table"] = True

    def build(self, encoder: "EncoderConfig", vocabulary: int) -> "WordScores":
        half = encoder.width // 2
        if self.tied and (encoder.front is not None or encoder.embedded != half):
            raise BadInput(f"a tied softmax over half the channels wants tables of {half} numbers; set model.embedding={half}, "
                           "or the head's tied=false")  # fmt: skip
        of_half = replace(encoder, width=half, embedding=None, front=None)
        return WordScores(WordHead(transform=False, tied=self.tied, bias=self.bias), of_half, vocabulary)


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


HeadConfig = (
    WordHead | HalfHead | ReplacedHead | LabelHead | TokenHead | TextHead | FeatureHead | ChainHead | CrossHead | TreeHead
    | RarityHead | GeneratorHead
)  # fmt: skip


class WordScores(nn.Module):
    def __init__(self, config: WordHead, encoder: "EncoderConfig", vocabulary: int) -> None:
        super().__init__()
        self.transform, self.norm, width = None, None, encoder.width
        if config.tied and not encoder.tabled:
            raise BadInput("this model has no table of tokens to score words by; set the head's tied=false")
        if config.transform:
            width = encoder.tabled or width
            self.transform, self.norm = nn.Linear(encoder.width, width), encoder.layer_norm(width)
            self.activation = ACTIVATIONS[encoder.activation]
        elif config.tied and encoder.tabled != width:
            raise BadInput(f"tables of {encoder.tabled} score no states of {width} without a matrix between them; set the "
                           "head's transform=true, or tied=false")  # fmt: skip
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if config.bias else None
        self.table = None if config.tied else nn.Linear(width, vocabulary, bias=False)

    def forward(self, rows: Tensor, encoder: "Encoder") -> Tensor:
        return product(self._transformed(rows), self._words(encoder), self.bias)

    def entropy(self, rows: Tensor, encoder: "Encoder", answers: Tensor) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of these answers, and how many of them came first."""
        if not kernels.serves(rows):
            return entropy(self(rows, encoder), answers)
        from ..kernels.cross_entropy import entropy as fused

        kind, words = rows.dtype, self._words(encoder)
        bias = words.new_zeros(len(words)) if self.bias is None else self.bias
        return fused(self._transformed(rows).to(kind), words.to(kind), bias.to(kind), answers)

    def _words(self, encoder: "Encoder") -> Tensor:
        # A tied table is the encoder's and not an attribute: it stays one tensor in the checkpoint.
        return encoder.tokens.weight if self.table is None else self.table.weight

    def _transformed(self, rows: Tensor) -> Tensor:
        return rows if self.transform is None or self.norm is None else self.norm(self.activation(self.transform(rows)))


def entropy(scores: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross entropy, and how many answers came first."""
    total = F.cross_entropy(scores.float(), answers, reduction="sum")
    return total, (scores.argmax(-1) == answers).sum()


class ReplacedScores(nn.Module):
    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        self.transform, self.score = nn.Linear(config.width, config.width), nn.Linear(config.width, 1)
        self.activation = ACTIVATIONS[config.activation]

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
