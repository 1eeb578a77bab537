"""A small model beside the model, over the same tables, that guesses hidden words: what ELECTRA learns to see through."""

from typing import TYPE_CHECKING, Annotated, Any

import torch
from msgspec import Meta
from msgspec.structs import replace
from torch import Tensor, nn

from ...config import Variant
from ...errors import UserError
from ..batch import Inputs
from ..transformer import Stack

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


SizeFraction = Annotated[float, Meta(gt=0, le=1)]


class GeneratorHeadConfig(Variant, frozen=True, tag="generator"):
    """Blocks of its own and a score for every word; it is there while the model learns, and is not published."""

    size: Annotated[SizeFraction, "its width, heads and inner width, as a share of the model's"] = 0.25

    def build(self, encoder: "EncoderConfig", vocab_size: int) -> "ElectraGenerator":
        return ElectraGenerator(self.generator_config(encoder), encoder.embedding_dim, vocab_size)

    def generator_config(self, encoder: "EncoderConfig") -> "EncoderConfig":
        """The generator as an encoder: as many layers, all of them narrower."""
        if encoder.front is not None or encoder.feedforward is None:
            raise UserError("objective=replaced wants a model of tables and feed-forwards, such as model=electra-small")
        width, fed = self._hidden_size(encoder), encoder.feedforward
        inner = max(1, round(fed.inner * width / encoder.width))
        others = encoder.others and replace(encoder.others, mixer=_scale_mixer(encoder.others.mixer, self.size))
        return replace(
            encoder, width=width, embedding=None if width == encoder.embedding_dim else encoder.embedding_dim, others=others,
            mixer=_scale_mixer(encoder.mixer, self.size), feedforward=replace(fed, inner=inner),
        )  # fmt: skip

    def _hidden_size(self, encoder: "EncoderConfig") -> int:
        """That of fewer heads; without any, a share, and even: two ways of reading may give half of it each."""
        heads = getattr(encoder.mixer, "heads", None)
        if heads is None:
            return encoder.width if self.size == 1 else 2 * max(1, round(encoder.width * self.size / 2))
        return encoder.width // heads * int(_scale_mixer(encoder.mixer, self.size).heads)


class ElectraGenerator(nn.Module):
    def __init__(self, config: "EncoderConfig", embedding_dim: int, vocab_size: int) -> None:
        super().__init__()
        from . import LMHeadConfig

        self.widen = nn.Identity() if config.embedding is None else nn.Linear(embedding_dim, config.width)
        self.stack = Stack(config)
        self.words = LMHeadConfig().build(config, vocab_size)

    def forward(self, inputs: Inputs, encoder: "Encoder") -> Tensor:
        """(rows, width): hidden states of the tokens wanted, over the model's own tables."""
        x = self.widen(encoder.sum_embeddings(inputs))
        for mixer in self.stack.mixers:
            mixer.prepare_forward()
        return self.stack(x, inputs.layout, None, inputs.output_indices)

    def cross_entropy(self, hidden_states: Tensor, encoder: "Encoder", labels: Tensor) -> tuple[Tensor, Tensor]:
        return self.words.cross_entropy(hidden_states, encoder, labels)

    @torch.no_grad()
    def sample(self, hidden_states: Tensor, encoder: "Encoder") -> Tensor:
        """(rows,): a word for each, as likely as it scores. In training dice are torch's own, else always the same."""
        scores = self.words(hidden_states, encoder).float()
        dice = None if self.training else torch.Generator(scores.device).manual_seed(0)
        waits = torch.empty_like(scores).exponential_(generator=dice)
        return (scores - waits.log()).argmax(-1)  # the first of so many clocks to ring, each at a pace of e^score


def _scale_mixer(mixer: Any, size: float) -> Any:
    """With fewer heads, and filters, of the same width, fewer of them dilated; with fewer cells."""
    counts = {name: getattr(mixer, name, None) for name in ("heads", "filters", "hidden")}
    less = {name: max(1, round(count * size)) for name, count in counts.items() if count}
    if dilation := getattr(mixer, "dilation", ()):
        less["dilation"] = dilation[len(dilation) - min(less["heads"], round(len(dilation) * size)) :]
    return replace(mixer, **less)
