"""A model: an encoder, a decoder if it writes, and the heads it was trained with, by name."""

from typing import Self

import msgspec
import torch
from torch import Tensor, nn

from ..config import Config
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .batch import Inputs
from .config import EncoderConfig
from .decoders import Decoder, DecoderConfig
from .embeddings.char_cnn import CharCNN
from .embeddings.fasttext import FastTextEmbedding
from .encoder import Encoder
from .heads import HeadConfig, cross_entropy
from .heads.electra_generator import ElectraGenerator, GeneratorHeadConfig
from .mixers import Mixer
from .mixers.adaptive_span import AdaptiveSpanAttention
from .transformer import Stack


class ModelConfig(Config, frozen=True):
    """The record of a built model: what `config.json` holds."""

    encoder: EncoderConfig
    vocabulary: int
    heads: dict[str, HeadConfig] = msgspec.field(default_factory=dict)
    decoder: DecoderConfig | None = None


class Model(nn.Module):
    always_eval: tuple[nn.Module, ...] = ()  # parts that drop nothing out, even in training

    def __init__(self, config: ModelConfig, init_weights: bool = True) -> None:
        """`drawn=False` leaves the weights as they come, for somebody who has others to put there."""
        super().__init__()
        self.config = config
        if config.decoder and config.encoder.reversible:
            raise UserError("a reversible encoder has two sides, and a decoder reads one; set model.reversible=false")
        self.encoder = Encoder(config.encoder, config.vocabulary)
        self.decoder: Decoder | None = config.decoder.build(config.encoder) if config.decoder else None
        heads = {name: head.build(config.encoder, config.vocabulary) for name, head in config.heads.items()}
        self.heads = nn.ModuleDict(heads)
        for module in self.modules() if init_weights else ():
            _init_weights(module, config.encoder.deviation)
        if init_weights and self.encoder.front is not None:
            self.encoder.front.reset_parameters()

    def forward(self, inputs: Inputs, all_hidden_states: list[Tensor] | None = None) -> Tensor:
        """(tokens, width): hidden states of every token; those of every layer go into `kept`, if somebody wants them."""
        return self.encoder(inputs, all_hidden_states)

    def compute_logits(self, head: str, hidden_states: Tensor) -> Tensor:
        if head not in self.heads:
            raise KeyError(f"this model has no head {head!r}, only {', '.join(self.heads) or 'none'}; train one first")
        return self.heads[head](hidden_states, self.encoder)

    def cross_entropy(self, head: str, hidden_states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The summed cross entropy of a head's scores, and how many answers came first."""
        own = getattr(self.heads[head], "cross_entropy", None) if head in self.heads else None
        return (
            own(hidden_states, self.encoder, labels) if own else cross_entropy(self.compute_logits(head, hidden_states), labels)
        )

    @property
    def uses_memory(self) -> bool:
        """What it makes of a text may depend on what stood before it: it takes `Inputs.memory`."""
        return any(mixer.mem_len for mixer in self.encoder.stack.mixers)

    def penalty(self) -> Tensor | float:
        """What its parts ask for themselves, whatever is learnt: Adaptive-Span's price of looking far."""
        return sum((mixer.penalty() for stack in self.stacks for mixer in stack.mixers), start=0.0)

    @property
    def stacks(self) -> list[Stack]:
        """The encoder's, and a generator's, if it learns beside one."""
        return [self.encoder.stack, *(head.stack for head in self.heads.values() if isinstance(head, ElectraGenerator))]

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Whether activations are computed again on the way back, not kept."""
        for stack in self.stacks:
            stack.gradient_checkpointing = enabled

    def attach_tokenizer(self, tokenizer: Tokenizer) -> None:
        """A front that spells its words learns from the tokenizer how, and opens it: no word is unknown to it."""
        if isinstance(self.encoder.front, CharCNN | FastTextEmbedding):
            self.encoder.front.attach_lexicon(tokenizer.enable_lexicon())

    def drop_training_heads(self) -> None:
        """Takes away the heads that only its training needed."""
        kept = {name: head for name, head in self.config.heads.items() if not isinstance(head, GeneratorHeadConfig)}
        for name in self.config.heads.keys() - kept:
            del self.heads[name]
        self.config = msgspec.structs.replace(self.config, heads=kept)

    def train(self, mode: bool = True) -> Self:
        """As ever, but for what is kept still."""
        super().train(mode)
        for part in self.always_eval:
            part.eval()
        return self

    def compile_parts(self) -> None:
        """The encoder as one graph; what follows depends on how many words are hidden, and changes with every batch."""
        if any(isinstance(part, Mixer) and not part.can_compile for part in self.modules()):
            raise UserError("a model that goes from token to token (mixer=lstm) does not compile; leave out train.compile")
        if self.config.encoder.reversible:
            raise UserError("a reversible model runs its blocks anew on the way back: no graph does; leave out train.compile")
        if any(isinstance(mixer, AdaptiveSpanAttention) for stack in self.stacks for mixer in stack.mixers):
            raise UserError("heads that learn how far they look (mixer=adaptive) want another graph whenever one looks further; "
                           "leave out train.compile")  # fmt: skip
        for stack in self.stacks:
            stack.compile(dynamic=True)


def build_model(config: ModelConfig, seed: int) -> Model:
    """A new model: the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(config)


def _init_weights(module: nn.Module, std: float) -> None:
    """Truncated normal, cut at two deviations; biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
