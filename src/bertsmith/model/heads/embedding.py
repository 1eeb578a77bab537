"""Dense layers after the pooling of a sentence embedding, as in sentence-transformers' folders."""

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta
from torch import Tensor, nn

from ...config import Config, PosInt, Variant
from ..folder import EMBEDDING_HEAD as EMBEDDING_HEAD
from ..linear import Linear
from ..sublayers import ACTIVATIONS

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder

DenseActivation = Literal["none", "tanh", "relu", "gelu", "silu"]


class DenseConfig(Config, frozen=True):
    """One dense layer: activation(W x + b)."""

    out_features: Annotated[PosInt, "size of its output"]
    activation: Annotated[DenseActivation, "activation: tanh in sentence-transformers; none: linear"] = "tanh"
    bias: Annotated[bool, "bias in the linear layer"] = True


class EmbeddingHeadConfig(Variant, frozen=True, tag="embedding"):
    """Sentence embedding of the pooled tokens, through dense layers (`Dense` of sentence-transformers)."""

    layers: Annotated[tuple[DenseConfig, ...], Meta(min_length=1), "the dense layers, in their order"]

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "EmbeddingHead":
        return EmbeddingHead(self, encoder.hidden_size)


class EmbeddingHead(nn.Module):
    """(rows, hidden_size) -> (rows, out_features of the last layer)."""

    def __init__(self, config: EmbeddingHeadConfig, hidden_size: int) -> None:
        super().__init__()
        sizes = [hidden_size, *(layer.out_features for layer in config.layers)]
        self.activations = [layer.activation for layer in config.layers]
        self.layers = nn.ModuleList(
            Linear(size, layer.out_features, bias=layer.bias) for size, layer in zip(sizes, config.layers, strict=False)
        )

    def forward(self, vectors: Tensor, encoder: "Encoder") -> Tensor:
        vectors = vectors.to(self.layers[0].weight.dtype)  # type: ignore[arg-type, call-overload]
        for layer, activation in zip(self.layers, self.activations, strict=True):
            vectors = layer(vectors) if activation == "none" else ACTIVATIONS[activation](layer(vectors))
        return vectors
