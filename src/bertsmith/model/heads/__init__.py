"""What turns hidden states into scores: (rows, width) -> (rows, answers)."""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

from ...config import PosInt, Probability, Variant
from ...errors import UserError
from .. import kernels
from ..embeddings.adaptive import AdaptiveSoftmaxHeadConfig
from ..small_matmul import small_linear
from ..sublayers import ACTIVATIONS
from .crf import CRFHeadConfig
from .cross_attention import CrossAttentionHeadConfig
from .electra_generator import GeneratorHeadConfig
from .features import FeatureHeadConfig
from .hierarchical_softmax import HierarchicalSoftmaxHeadConfig

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


LM_HEAD = "words"  # the name of the head that says what is written next


class LMHeadConfig(Variant, frozen=True, tag="words"):
    """A score for every word, by the table of token embeddings."""

    transform: Annotated[bool, "a matrix, the activation and a norm before the table, as BERT; GPT has none"] = True
    tied: Annotated[bool, "the table is that of the embeddings; else one of its own"] = True
    bias: Annotated[bool, "a number for every word beside the table"] = True

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "LMHead":
        return LMHead(self, encoder, vocab_size)


class HalfLMHeadConfig(Variant, frozen=True, tag="half"):
    """A score for every word, of half the channels: those that read forward, or those that read backward."""

    tied: Annotated[bool, "the table is that of the embeddings, which have half the width; else one of its own"] = False
    bias: Annotated[bool, "a number for every word beside the table"] = True

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "LMHead":
        half = encoder.width // 2
        if self.tied and (encoder.front is not None or encoder.embedding_dim != half):
            raise UserError(f"a tied softmax over half the channels wants tables of {half} numbers; set model.embedding={half}, "
                           "or the head's tied=false")  # fmt: skip
        of_half = replace(encoder, width=half, embedding=None, front=None)
        return LMHead(LMHeadConfig(transform=False, tied=self.tied, bias=self.bias), of_half, vocab_size)


class DiscriminatorHeadConfig(Variant, frozen=True, tag="replaced"):
    """One score for every token: above 0 where it was put in the place of another, as ELECTRA's discriminator says."""

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "DiscriminatorHead":
        return DiscriminatorHead(encoder)


class PooledHeadConfig(Variant, frozen=True, tag="labels"):
    """A score for every label, of the pooled row that stands for the text."""

    labels: Annotated[PosInt, "how many there are"]

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "PooledClassifier":
        return PooledClassifier(encoder.width, self.labels)


class TokenHeadConfig(Variant, frozen=True, tag="tokens"):
    """Scores for every token: a tag each, or where an answer begins and ends."""

    outputs: Annotated[PosInt, "scores a token"]
    dropout: Annotated[Probability, "on what is scored"] = 0.1

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "TokenClassifier":
        return TokenClassifier(encoder.width, self.outputs, self.dropout)


class SequenceHeadConfig(Variant, frozen=True, tag="text"):
    """Scores for whole texts, of the pooled row, with dropout before them: what fine-tuning adds."""

    outputs: Annotated[PosInt, "scores a text"]
    dropout: Annotated[Probability, "on what is scored"] = 0.1

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "SequenceClassifier":
        return SequenceClassifier(encoder.width, self.outputs, self.dropout)


HeadConfig = (
    LMHeadConfig | HalfLMHeadConfig | DiscriminatorHeadConfig | PooledHeadConfig | TokenHeadConfig | SequenceHeadConfig | FeatureHeadConfig | CRFHeadConfig | CrossAttentionHeadConfig | HierarchicalSoftmaxHeadConfig
    | AdaptiveSoftmaxHeadConfig | GeneratorHeadConfig
)  # fmt: skip


class LMHead(nn.Module):
    def __init__(self, config: LMHeadConfig, encoder: "EncoderConfig", vocab_size: int) -> None:
        super().__init__()
        self.transform, self.norm, width = None, None, encoder.width
        if config.tied and not encoder.token_table_dim:
            raise UserError("this model has no table of tokens to score words by; set the head's tied=false")
        if config.transform:
            width = encoder.token_table_dim or width
            self.transform, self.norm = nn.Linear(encoder.width, width), encoder.build_layer_norm(width)
            self.activation = ACTIVATIONS[encoder.head_activation]
        elif config.tied and encoder.token_table_dim != width:
            raise UserError(f"tables of {encoder.token_table_dim} score no states of {width} without a matrix between them; set the "
                           "head's transform=true, or tied=false")  # fmt: skip
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None
        self.table = None if config.tied else nn.Linear(width, vocab_size, bias=False)

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return small_linear(self._transform(hidden_states), self._output_embeddings(encoder), self.bias)

    def cross_entropy(self, hidden_states: Tensor, encoder: "Encoder", labels: Tensor) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of these answers, and how many of them came first."""
        if not kernels.supports(hidden_states):
            return cross_entropy(self(hidden_states, encoder), labels)
        from ..kernels.cross_entropy import fused_linear_cross_entropy as fused

        kind, words = hidden_states.dtype, self._output_embeddings(encoder)
        bias = words.new_zeros(len(words)) if self.bias is None else self.bias
        return fused(self._transform(hidden_states).to(kind), words.to(kind), bias.to(kind), labels)

    def _output_embeddings(self, encoder: "Encoder") -> Tensor:
        # A tied table is the encoder's and not an attribute: it stays one tensor in the checkpoint.
        return encoder.tokens.weight if self.table is None else self.table.weight

    def _transform(self, hidden_states: Tensor) -> Tensor:
        return (
            hidden_states
            if self.transform is None or self.norm is None
            else self.norm(self.activation(self.transform(hidden_states)))
        )


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed cross entropy, and how many answers came first."""
    total = F.cross_entropy(logits.float(), labels, reduction="sum")
    return total, (logits.argmax(-1) == labels).sum()


class DiscriminatorHead(nn.Module):
    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        self.transform, self.score = nn.Linear(config.width, config.width), nn.Linear(config.width, 1)
        self.activation = ACTIVATIONS[config.head_activation]

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return self.score(self.activation(self.transform(hidden_states)))


class PooledClassifier(nn.Module):
    def __init__(self, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, num_labels)

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return self.score(encoder.apply_pooler(hidden_states))


class TokenClassifier(nn.Module):
    def __init__(self, hidden_size: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.drop, self.score = nn.Dropout(dropout), nn.Linear(hidden_size, num_labels)

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return self.score(self.drop(hidden_states))


class SequenceClassifier(TokenClassifier):
    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return super().forward(encoder.apply_pooler(hidden_states), encoder)
