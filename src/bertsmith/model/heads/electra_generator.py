"""ELECTRA's generator (Clark et al. 2020): a small masked language model that shares the discriminator's embeddings."""

from typing import TYPE_CHECKING, Annotated, Any

import torch
from msgspec import Meta
from msgspec.structs import replace
from torch import Tensor, nn

from ...config import Variant
from ...errors import UserError
from ..batch import Inputs
from ..linear import Linear
from ..transformer import Stack

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


SizeFraction = Annotated[float, Meta(gt=0, le=1)]


class GeneratorHeadConfig(Variant, frozen=True, tag="generator"):
    """Generator with blocks and LM head of its own; used in pre-training only, not saved with the final model."""

    size: Annotated[
        SizeFraction, "hidden, intermediate size and heads of the generator as a fraction of the discriminator's"
    ] = 0.25

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "ElectraGenerator":
        return ElectraGenerator(self.generator_config(encoder), encoder.embedding_dim, vocab_size)

    def generator_config(self, encoder: "EncoderConfig") -> "EncoderConfig":
        """The generator's encoder config: as many layers, with `size` times the heads, hidden size and intermediate size."""
        if encoder.embeddings is not None or encoder.feedforward is None:
            raise UserError(
                "objective=rtd needs a model with a token table and feed-forward layers, such as model=electra-small"
            )
        hidden_size, feedforward = self._hidden_size(encoder), encoder.feedforward
        intermediate_size = max(1, round(feedforward.intermediate_size * hidden_size / encoder.hidden_size))
        others = encoder.layer_types and replace(encoder.layer_types, mixer=_scale_mixer(encoder.layer_types.mixer, self.size))
        return replace(
            encoder,
            hidden_size=hidden_size,
            embedding_size=None if hidden_size == encoder.embedding_dim else encoder.embedding_dim,
            layer_types=others,
            layer_sizes=None,
            mixer=_scale_mixer(encoder.mixer, self.size),
            feedforward=replace(feedforward, intermediate_size=intermediate_size),
        )

    def _hidden_size(self, encoder: "EncoderConfig") -> int:
        """head_dim times the scaled number of heads; without heads, an even share of the hidden size (for two directions)."""
        heads = getattr(encoder.mixer, "num_attention_heads", None)
        if heads is None:
            return encoder.hidden_size if self.size == 1 else 2 * max(1, round(encoder.hidden_size * self.size / 2))
        return encoder.hidden_size // heads * int(_scale_mixer(encoder.mixer, self.size).num_attention_heads)


class ElectraGenerator(nn.Module):
    """Projection of the shared embeddings, a narrower stack, and a tied LM head."""

    def __init__(self, config: "EncoderConfig", embedding_dim: int, vocab_size: int) -> None:
        super().__init__()
        from . import LMHeadConfig

        self.embedding_projection = (
            nn.Identity() if config.embedding_size is None else Linear(embedding_dim, config.hidden_size)
        )
        self.stack = Stack(config)
        self.lm_head = LMHeadConfig().build(config, vocab_size)

    def forward(self, inputs: Inputs, encoder: "Encoder") -> Tensor:
        """(rows, generator hidden_size): hidden states at `inputs.output_indices`, from the model's embeddings."""
        x = self.embedding_projection(encoder.sum_embeddings(inputs))
        return self.stack(x, inputs.layout, None, inputs.output_indices)

    def cross_entropy(self, hidden_states: Tensor, encoder: "Encoder", labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.lm_head.cross_entropy(hidden_states, encoder, labels)

    @torch.no_grad()
    def sample(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows,): tokens sampled from softmax(logits); with torch's global generator in training, else with a fixed seed."""
        logits = self.lm_head(hidden_states, encoder).float()
        generator = None if self.training else torch.Generator(logits.device).manual_seed(0)
        exponentials = torch.empty_like(logits).exponential_(generator=generator)
        return (logits - exponentials.log()).argmax(-1)  # Gumbel-max trick: -log of an exponential is a Gumbel variable


def _scale_mixer(mixer: Any, size: float) -> Any:
    """The mixer with `size` times the heads, filters, dilated heads or LSTM cells, and the same head_dim."""
    counts = {name: getattr(mixer, name, None) for name in ("num_attention_heads", "num_filters", "cell_size")}
    scaled = {name: max(1, round(count * size)) for name, count in counts.items() if count}
    dilation = getattr(mixer, "dilation", ())  # of each head in Longformer; one number in convolutions
    if isinstance(dilation, tuple) and dilation:
        scaled["dilation"] = dilation[len(dilation) - min(scaled["num_attention_heads"], round(len(dilation) * size)) :]
    return replace(mixer, **scaled)
