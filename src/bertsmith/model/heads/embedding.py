"""Dense layers after the pooling of a sentence embedding, as in sentence-transformers' folders."""

from typing import TYPE_CHECKING, Annotated, Literal, cast

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from ...config import Config, PosInt, Variant
from ..folder import EMBEDDING_HEAD as EMBEDDING_HEAD
from ..linear import Linear
from ..sublayers import ACTIVATIONS

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder
    from ..model import Model

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
        vectors = vectors.to(self.layers[0].weight.dtype)  # type: ignore[arg-type]
        for layer, activation in zip(self.layers, self.activations, strict=True):
            vectors = layer(vectors) if activation == "none" else ACTIVATIONS[activation](layer(vectors))
        return vectors


def init_identity(head: nn.Module) -> None:
    """Make the last dense layer the identity (of its first dimensions, where the sizes differ)."""
    layer = cast(nn.ModuleList, head.layers)[-1]
    nn.init.eye_(cast(Tensor, layer.weight))
    nn.init.zeros_(cast(Tensor, layer.bias))


@torch.no_grad()
def subtract_mean(model: "Model", mean: Tensor) -> None:
    """Subtract `mean` (embedding size,) from the model's embeddings: in the bias of its last dense layer, if that is linear,
    or else in one more layer, whose matrix is the identity."""
    config = model.config.heads.get(EMBEDDING_HEAD)
    layers = config.layers if isinstance(config, EmbeddingHeadConfig) else ()
    device = next(model.parameters()).device
    if not layers or layers[-1].activation != "none" or not layers[-1].bias:
        head = EmbeddingHeadConfig(layers=(*layers, DenseConfig(out_features=len(mean), activation="none")))
        module = EmbeddingHead(head, model.config.encoder.hidden_size).to(device).eval()
        if layers:
            module.load_state_dict(model.heads[EMBEDDING_HEAD].state_dict(), strict=False)
        init_identity(module)
        model.heads[EMBEDDING_HEAD] = module
        model.config = msgspec.structs.replace(model.config, heads=model.config.heads | {EMBEDDING_HEAD: head})
    bias = model.heads[EMBEDDING_HEAD].layers[-1].bias  # type: ignore[union-attr, index]
    bias -= mean.to(device, bias.dtype)
