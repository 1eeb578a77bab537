"""A model: an encoder, a decoder if it writes, and the heads it was trained with, by name."""

from typing import Self

import msgspec
import torch
from torch import Tensor, nn

from ..config import Config
from ..errors import BadInput
from ..tokenization.tokenizer import Tokenizer
from .batch import Inputs
from .config import EncoderConfig
from .decoders import Decoder, DecoderConfig
from .embeddings.char_cnn import Speller
from .embeddings.fasttext import Composer
from .encoder import Encoder
from .heads import HeadConfig, entropy
from .heads.electra_generator import Generator, GeneratorHead
from .mixers import Mixer
from .mixers.adaptive_span import AdaptiveAttention
from .transformer import Stack


class ModelConfig(Config, frozen=True):
    """The record of a built model: what `config.json` holds."""

    encoder: EncoderConfig
    vocabulary: int
    heads: dict[str, HeadConfig] = msgspec.field(default_factory=dict)
    decoder: DecoderConfig | None = None


class Model(nn.Module):
    still: tuple[nn.Module, ...] = ()  # parts that drop nothing out, even in training

    def __init__(self, config: ModelConfig, drawn: bool = True) -> None:
        """`drawn=False` leaves the weights as they come, for somebody who has others to put there."""
        super().__init__()
        self.config = config
        if config.decoder and config.encoder.reversible:
            raise BadInput("a reversible encoder has two sides, and a decoder reads one; set model.reversible=false")
        self.encoder = Encoder(config.encoder, config.vocabulary)
        self.decoder: Decoder | None = config.decoder.build(config.encoder) if config.decoder else None
        heads = {name: head.build(config.encoder, config.vocabulary) for name, head in config.heads.items()}
        self.heads = nn.ModuleDict(heads)
        for module in self.modules() if drawn else ():
            _initialise(module, config.encoder.deviation)
        if drawn and self.encoder.front is not None:
            self.encoder.front.begin()

    def forward(self, inputs: Inputs, kept: list[Tensor] | None = None) -> Tensor:
        """(tokens, width): hidden states of every token; those of every layer go into `kept`, if somebody wants them."""
        return self.encoder(inputs, kept)

    def scores(self, head: str, rows: Tensor) -> Tensor:
        if head not in self.heads:
            raise KeyError(f"this model has no head {head!r}, only {', '.join(self.heads) or 'none'}; train one first")
        return self.heads[head](rows, self.encoder)

    def entropy(self, head: str, rows: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of a head's scores, and how many answers came first."""
        own = getattr(self.heads[head], "entropy", None) if head in self.heads else None
        return own(rows, self.encoder, answers) if own else entropy(self.scores(head, rows), answers)

    @property
    def remembers(self) -> bool:
        """What it makes of a text may depend on what stood before it: it takes `Inputs.memory`."""
        return any(mixer.remembers for mixer in self.encoder.stack.mixers)

    def penalty(self) -> Tensor | float:
        """What its parts ask for themselves, whatever is learnt: Adaptive-Span's price of looking far."""
        return sum((mixer.penalty() for stack in self.stacks for mixer in stack.mixers), start=0.0)

    @property
    def stacks(self) -> list[Stack]:
        """The encoder's, and a generator's, if it learns beside one."""
        return [self.encoder.stack, *(head.stack for head in self.heads.values() if isinstance(head, Generator))]

    def recompute(self, again: bool) -> None:
        """Whether activations are computed again on the way back, not kept."""
        for stack in self.stacks:
            stack.recompute = again

    def meet(self, tokenizer: Tokenizer) -> None:
        """A front that spells its words learns from the tokenizer how, and opens it: no word is unknown to it."""
        if isinstance(self.encoder.front, Speller | Composer):
            self.encoder.front.meet(tokenizer.opened())

    def finish(self) -> None:
        """Takes away the heads that only its training needed."""
        kept = {name: head for name, head in self.config.heads.items() if not isinstance(head, GeneratorHead)}
        for name in self.config.heads.keys() - kept:
            del self.heads[name]
        self.config = msgspec.structs.replace(self.config, heads=kept)

    def train(self, mode: bool = True) -> Self:
        """As ever, but for what is kept still."""
        super().train(mode)
        for part in self.still:
            part.eval()
        return self

    def compile_parts(self) -> None:
        """The encoder as one graph; what follows depends on how many words are hidden, and changes with every batch."""
        if any(isinstance(part, Mixer) and not part.compiles for part in self.modules()):
            raise BadInput("a model that goes from token to token (mixer=lstm) does not compile; leave out train.compile")
        if self.config.encoder.reversible:
            raise BadInput("a reversible model runs its blocks anew on the way back: no graph does; leave out train.compile")
        if any(isinstance(mixer, AdaptiveAttention) for stack in self.stacks for mixer in stack.mixers):
            raise BadInput("heads that learn how far they look (mixer=adaptive) want another graph whenever one looks further; "
                           "leave out train.compile")  # fmt: skip
        for stack in self.stacks:
            stack.compile(dynamic=True)


def built(config: ModelConfig, seed: int) -> Model:
    """A new model: the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(config)


def _initialise(module: nn.Module, deviation: float) -> None:
    """Truncated normal, cut at two deviations; biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
