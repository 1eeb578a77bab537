"""Heads: hidden states (rows, hidden_size) -> logits (rows, outputs).

Here: the language modeling head, ELECTRA's discriminator, and linear classifiers of tokens and of pooled sequences. Other
files: CRF, cross-attention between two texts, ELECTRA's generator, features of several layers, hierarchical softmax.
"""

from typing import TYPE_CHECKING, Annotated

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

from ...config import PosInt, Probability, Variant
from ...errors import UserError
from .. import kernels
from ..embeddings import FactorizedConfig, FactorizedEmbedding
from ..embeddings.adaptive import AdaptiveSoftmaxHeadConfig
from ..folder import LM_HEAD as LM_HEAD
from ..linear import Linear, small_linear
from ..sublayers import ACTIVATIONS
from .crf import CRFHeadConfig
from .cross_attention import CrossAttentionHeadConfig
from .electra_generator import GeneratorHeadConfig
from .embedding import EmbeddingHeadConfig
from .features import FeatureHeadConfig
from .hierarchical_softmax import HierarchicalSoftmaxHeadConfig

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


class LMHeadConfig(Variant, frozen=True, tag="lm"):
    """Language modeling head: a logit for every token of the vocabulary, by default tied to the token embeddings."""

    transform: Annotated[bool, "dense layer, activation and LayerNorm before the output embeddings (BERT; not in GPT)"] = True
    tied: Annotated[bool, "tie the output embeddings to the token embeddings"] = True
    bias: Annotated[bool, "bias for each token of the vocabulary"] = True

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "LMHead":
        return LMHead(self, encoder, vocab_size)


class HalfLMHeadConfig(Variant, frozen=True, tag="half-lm"):
    """Language modeling head over half of the channels: those of the forward or of the backward language model (ELMo)."""

    tied: Annotated[bool, "tie the output embeddings to the token embeddings, of half the hidden size"] = False
    bias: Annotated[bool, "bias for each token of the vocabulary"] = True

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "LMHead":
        half_size = encoder.hidden_size // 2
        if self.tied and (encoder.embeddings is not None or encoder.embedding_dim != half_size):
            raise UserError(
                f"a tied softmax over half the channels needs embeddings of size {half_size}; "
                f"set model.embedding_size={half_size}, or the head's tied=false"
            )
        half_encoder = replace(encoder, hidden_size=half_size, embedding_size=half_size, embeddings=None)
        return LMHead(LMHeadConfig(transform=False, tied=self.tied, bias=self.bias), half_encoder, vocab_size)


class DiscriminatorHeadConfig(Variant, frozen=True, tag="rtd"):
    """ELECTRA's discriminator: one logit for each token, above 0 if it was replaced."""

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "DiscriminatorHead":
        return DiscriminatorHead(encoder)


class PooledHeadConfig(Variant, frozen=True, tag="pooled"):
    """Logits of the pooled sequence without dropout: next-sentence prediction and sentence order."""

    labels: Annotated[PosInt, "number of labels"]

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "PooledClassifier":
        return PooledClassifier(encoder.text_size, self.labels)


class TokenHeadConfig(Variant, frozen=True, tag="token-classification"):
    """Logits for each token: tags, or start and end of an answer."""

    outputs: Annotated[PosInt, "number of logits for each token"]
    dropout: Annotated[Probability, "dropout before the classifier"] = 0.1

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "TokenClassifier":
        return TokenClassifier(encoder, encoder.hidden_size, self.outputs, self.dropout)


class SequenceHeadConfig(Variant, frozen=True, tag="sequence-classification"):
    """Logits of the pooled sequence with dropout before the classifier: the fine-tuning head."""

    outputs: Annotated[PosInt, "number of logits for each sequence"]
    dropout: Annotated[Probability, "dropout before the classifier"] = 0.1

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "SequenceClassifier":
        return SequenceClassifier(encoder, encoder.text_size, self.outputs, self.dropout)


HeadConfig = (
    LMHeadConfig | HalfLMHeadConfig | DiscriminatorHeadConfig | PooledHeadConfig | TokenHeadConfig | SequenceHeadConfig
    | FeatureHeadConfig | CRFHeadConfig | CrossAttentionHeadConfig | HierarchicalSoftmaxHeadConfig
    | AdaptiveSoftmaxHeadConfig | GeneratorHeadConfig | EmbeddingHeadConfig
)  # fmt: skip


class LMHead(nn.Module):
    """W t + b with t = LayerNorm(act(A h)) (BERT's transform) or t = h; W is the token embedding table if tied."""

    def __init__(self, config: LMHeadConfig, encoder: "EncoderConfig", vocab_size: int) -> None:
        super().__init__()
        self.transform, self.norm, input_size = None, None, encoder.hidden_size
        if config.tied and not encoder.token_table_dim:
            raise UserError("this model has no token embeddings to tie the head to; set the head's tied=false")
        is_factorized = isinstance(encoder.embeddings, FactorizedConfig)  # then `project_back` takes t to the table's size
        if config.transform:
            input_size = input_size if is_factorized else encoder.token_table_dim or input_size
            self.transform, self.norm = Linear(encoder.hidden_size, input_size), encoder.build_layer_norm(input_size)
            self.activation = ACTIVATIONS[encoder.head_activation]
        elif config.tied and encoder.token_table_dim != input_size and not is_factorized:
            raise UserError(
                f"token embeddings of size {encoder.token_table_dim} cannot be tied to hidden states of "
                f"{input_size} without a transform; "
                "set the head's transform=true, or tied=false"
            )
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None
        self.output_embeddings = None if config.tied else Linear(input_size, vocab_size, bias=False)

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return small_linear(self._transform(hidden_states, encoder), self._output_embeddings(encoder), self.bias)

    def cross_entropy(self, hidden_states: Tensor, encoder: "Encoder", labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over rows, and the number of correct (top-1) predictions; fused with the product on a GPU."""
        if not kernels.supports(hidden_states):
            return cross_entropy(self(hidden_states, encoder), labels)
        from ..kernels.cross_entropy import fused_linear_cross_entropy as fused

        dtype, output_embeddings = hidden_states.dtype, self._output_embeddings(encoder)
        bias = output_embeddings.new_zeros(len(output_embeddings)) if self.bias is None else self.bias
        return fused(self._transform(hidden_states, encoder).to(dtype), output_embeddings.to(dtype), bias.to(dtype), labels)

    def _output_embeddings(self, encoder: "Encoder") -> Tensor:
        # A tied table is not an attribute of the head, so that the checkpoint holds it once.
        return encoder.word_embeddings.weight if self.output_embeddings is None else self.output_embeddings.weight

    def _transform(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        x = hidden_states
        if self.transform is not None and self.norm is not None:
            x = self.norm(self.activation(self.transform(hidden_states)))
        embeddings = encoder.input_embeddings
        if self.output_embeddings is None and isinstance(embeddings, FactorizedEmbedding):
            return embeddings.project_back(x)
        return x


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy in float32 summed over rows, and the number of correct (top-1) predictions; labels: (rows,)."""
    total = F.cross_entropy(logits.float(), labels, reduction="sum")
    return total, (logits.argmax(-1) == labels).sum()


class DiscriminatorHead(nn.Module):
    """w . act(A h) + b: (rows, 1)."""

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        self.transform, self.classifier = Linear(config.hidden_size, config.hidden_size), Linear(config.hidden_size, 1)
        self.activation = ACTIVATIONS[config.head_activation]

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return self.classifier(self.activation(self.transform(hidden_states)))


class PooledClassifier(nn.Module):
    """Linear layer on the pooler's output."""

    def __init__(self, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.classifier = Linear(hidden_size, num_labels)

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return self.classifier(encoder.apply_pooler(hidden_states))


class TokenClassifier(nn.Module):
    """Dropout and a linear layer on each row h, or on LayerNorm(act(A h + b)) if the encoder has `head_transform`."""

    def __init__(self, encoder: "EncoderConfig", hidden_size: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.transform, self.norm, self.activation = None, None, ACTIVATIONS[encoder.head_activation]
        if encoder.head_transform:
            self.transform, self.norm = Linear(hidden_size, hidden_size), encoder.build_layer_norm(hidden_size)
        self.drop, self.classifier = nn.Dropout(dropout), Linear(hidden_size, num_labels)

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        if self.transform is not None and self.norm is not None:
            hidden_states = self.norm(self.activation(self.transform(hidden_states)))
        return self.classifier(self.drop(hidden_states))


class SequenceClassifier(TokenClassifier):
    """The same on the pooler's output."""

    def forward(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        return super().forward(encoder.apply_pooler(hidden_states), encoder)
