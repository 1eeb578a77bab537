"""`Model`: an encoder, an optional decoder, and its heads by name."""

from typing import Self

import msgspec
import torch
from torch import Tensor, nn

from ..config import Config, PosInt
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .batch import Inputs
from .config import EncoderConfig
from .decoders import Decoder, DecoderConfig
from .encoder import Encoder
from .heads import HeadConfig, cross_entropy
from .heads.electra_generator import ElectraGenerator, GeneratorHeadConfig
from .mixers import Mixer
from .mixers.adaptive_span import AdaptiveSpanAttention
from .transformer import Stack


class ModelConfig(Config, frozen=True):
    """Config of a built model, as stored in `config.json`: its `initializer_range` is always a number."""

    encoder: EncoderConfig
    vocab_size: PosInt
    heads: dict[str, HeadConfig] = msgspec.field(default_factory=dict)
    decoder: DecoderConfig | None = None

    def __post_init__(self) -> None:
        if self.encoder.initializer_range is None:
            encoder = msgspec.structs.replace(self.encoder, initializer_range=self.encoder.init_std)
            msgspec.structs.force_setattr(self, "encoder", encoder)


class Model(nn.Module):
    """Encoder, decoder (sequence-to-sequence only) and heads; weights are initialized unless `init_weights=False`."""

    always_eval: tuple[nn.Module, ...] = ()  # submodules kept in eval mode (no dropout) during training

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer | None = None, init_weights: bool = True) -> None:
        """`tokenizer` encodes the model's inputs; embeddings of characters (`has_open_vocabulary`) look up the word of an id in
        its lexicon, others do without. `init_weights=False` skips initialization, for callers who load weights next."""
        super().__init__()
        self.config = config
        if config.decoder and config.encoder.reversible:
            raise UserError("a reversible encoder cannot have a decoder; set model.reversible=false")
        lexicon = tokenizer.lexicon if tokenizer is not None and config.encoder.has_open_vocabulary else None
        self.encoder = Encoder(config.encoder, config.vocab_size, lexicon)
        self.decoder: Decoder | None = config.decoder.build(config.encoder) if config.decoder else None
        heads = {name: head.build(config.encoder, config.vocab_size) for name, head in config.heads.items()}
        self.heads = nn.ModuleDict(heads)
        for module in self.modules() if init_weights else ():
            _init_weights(module, config.encoder.init_std)
        if init_weights and self.encoder.input_embeddings is not None:
            self.encoder.input_embeddings.reset_parameters()

    def forward(self, inputs: Inputs, all_hidden_states: list[Tensor] | None = None) -> Tensor:
        """Hidden states (tokens, hidden_size); those of every layer are appended to `all_hidden_states` if it is given."""
        return self.encoder(inputs, all_hidden_states)

    def decode(self, inputs: Inputs, decoder_inputs: Inputs | None) -> Tensor:
        """Hidden states (rows, hidden_size) from which the target tokens are predicted, with teacher forcing.

        Without `decoder_inputs` (prefix LM), `inputs` holds each target behind its source.
        """
        if decoder_inputs is None:
            return self(inputs)
        assert self.decoder is not None
        return self.decoder(decoder_inputs, self(inputs), inputs.layout, self.encoder)

    def compute_logits(self, head: str, hidden_states: Tensor) -> Tensor:
        """(rows, outputs): logits of the named head."""
        if head not in self.heads:
            raise KeyError(f"this model has no head {head!r}, only {', '.join(self.heads) or 'none'}; train one first")
        return self.heads[head](hidden_states, self.encoder)

    def cross_entropy(self, head: str, hidden_states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of a head's logits, summed over rows, and the number of correct (top-1) predictions."""
        fused_loss = getattr(self.heads[head], "cross_entropy", None) if head in self.heads else None
        return (
            fused_loss(hidden_states, self.encoder, labels)
            if fused_loss
            else cross_entropy(self.compute_logits(head, hidden_states), labels)
        )

    @property
    def uses_memory(self) -> bool:
        """Whether a layer attends to preceding segments (Transformer-XL, Adaptive-Span), given as `Inputs.state`."""
        return any(self.encoder.stack.mem_lens)

    def aux_loss(self) -> Tensor | float:
        """Regularization terms of the mixers, added to any loss: the span penalty of Adaptive-Span."""
        return sum((mixer.aux_loss() for stack in self.stacks for mixer in stack.mixers), start=0.0)

    @property
    def stacks(self) -> list[Stack]:
        """The encoder's stack, and that of an ELECTRA generator."""
        return [self.encoder.stack, *(head.stack for head in self.heads.values() if isinstance(head, ElectraGenerator))]

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Recompute activations in the backward pass instead of storing them."""
        for stack in self.stacks:
            stack.gradient_checkpointing = enabled

    def drop_training_heads(self) -> None:
        """Delete heads that only pre-training uses (the ELECTRA generator)."""
        remaining = {name: head for name, head in self.config.heads.items() if not isinstance(head, GeneratorHeadConfig)}
        for name in self.config.heads.keys() - remaining:
            del self.heads[name]
        self.config = msgspec.structs.replace(self.config, heads=remaining)

    def train(self, mode: bool = True) -> Self:
        """`nn.Module.train`, but modules of `always_eval` stay in eval mode."""
        super().train(mode)
        for module in self.always_eval:
            module.eval()
        return self

    def compile_parts(self) -> None:
        """torch.compile each stack. Heads are left out: their row count (masked tokens) changes with every batch."""
        if any(isinstance(module, Mixer) and not module.can_compile for module in self.modules()):
            raise UserError("mixer=lstm cannot be compiled; leave out train.compile")
        if self.config.encoder.reversible:
            raise UserError(
                "reversible layers are recomputed in the backward pass, which torch.compile does not support; "
                "leave out train.compile"
            )
        if any(isinstance(mixer, AdaptiveSpanAttention) for stack in self.stacks for mixer in stack.mixers):
            raise UserError(
                "mixer=adaptive-span changes its shapes as the spans grow, which torch.compile does not support; "
                "leave out train.compile"
            )
        for stack in self.stacks:
            stack.compile(dynamic=True)


def build_model(config: ModelConfig, seed: int, tokenizer: Tokenizer | None = None) -> Model:
    """A new model for inputs encoded by `tokenizer` (see `Model`); the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(config, tokenizer)


def _init_weights(module: nn.Module, std: float) -> None:
    """Truncated normal, cut at two standard deviations; biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
