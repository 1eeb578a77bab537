"""`EncoderConfig`, the architecture of an encoder: the `model` section of a recipe."""

from typing import Annotated, Literal

import msgspec
from torch import nn

from ..config import Config, NonNegInt, NumLayers, PosFloat, PosInt, Probability
from ..errors import UserError
from ..tokenization.tokenizer import Tokenizer
from .embeddings import InputEmbeddingConfig
from .mixers import Attention, LiteTransformer, Longformer, MixerConfig, Reformer, ReformerChunked
from .mixers.reformer.reversible import ReversibleMode
from .mixers.separate_directions import SeparateAddNorm, SeparateFeedForward
from .positions import AxialPositionsConfig
from .sublayers import Activation, AddNorm, FeedForwardConfig, NoNorm, PoolActivation, ResidualAdd

DEFAULT_ROPE_THETA = 10_000.0  # base of the RoPE frequencies in Su et al. 2021
BERT_HIDDEN_SIZE, BERT_INIT_STD = 768, 0.02  # of BERT-base: its hidden size and the standard deviation of its initial weights
PoolingMode = Literal["cls", "mean", "max", "concat"]
ResidualMode = Literal["all", "between", "none"]


class LayerTypes(Config, frozen=True):
    """Layers with another mixer: layer i uses `model.mixer` if i % every == 0, else this `mixer` (ModernBERT, every=3)."""

    every: Annotated[PosInt, "every n-th layer, from the first, uses model.mixer (3 in ModernBERT)"] = 3
    mixer: Annotated[Attention | Longformer | LiteTransformer, "mixer of the other layers"] = Longformer(
        attention_window=(128,), global_attention=False
    )


class LayerSizes(Config, frozen=True):
    """Sizes of layers that are not all alike, as in a pruned model: one number for each layer, from the lowest."""

    num_attention_heads: Annotated[
        tuple[PosInt, ...] | None, "attention heads of each layer, of the size of the mixer's; none: the mixer's"
    ] = None
    intermediate_size: Annotated[tuple[PosInt, ...] | None, "feed-forward size of each layer; none: feedforward's"] = None

    def check(self, num_layers: int) -> None:
        """Raises a UserError unless there is a size for each of the different layers."""
        for name in ("num_attention_heads", "intermediate_size"):
            sizes = getattr(self, name)
            if sizes is not None and len(sizes) != num_layers:
                raise UserError(
                    f"model.layer_sizes.{name} has {len(sizes)} entries; give one for each of the {num_layers} different layers"
                )


class EncoderConfig(Config, frozen=True):
    """Architecture of an encoder; the defaults are BERT-base."""

    num_hidden_layers: Annotated[NumLayers, "number of transformer layers; 0: embeddings only"] = 12
    num_hidden_groups: Annotated[
        PosInt | None, "number of distinct layers, shared by the others (1 in ALBERT); none: no sharing"
    ] = None
    hidden_size: Annotated[PosInt, "hidden size (d_model)"] = 768
    embedding_size: Annotated[PosInt | None, "embedding size, projected to hidden_size (128 in ALBERT); none: hidden_size"] = (
        None
    )
    mixer: Annotated[MixerConfig, "token mixer of each layer: attention, convolution or recurrence"] = Attention()
    layer_types: Annotated[
        LayerTypes | None, "layers with another mixer (ModernBERT: local attention in 2 of 3); none: all alike"
    ] = None
    feedforward: Annotated[FeedForwardConfig | None, "position-wise feed-forward sublayer; none: no such sublayer"] = (
        FeedForwardConfig()
    )
    layer_sizes: Annotated[
        LayerSizes | None, "heads and feed-forward size of each layer, as in a pruned model; none: all layers alike"
    ] = None
    norm: Annotated[
        Literal["post", "pre", "none"],
        "LayerNorm after each sublayer (post, BERT), before it (pre, GPT-2) or nowhere in the layers",
    ] = "post"
    residual: Annotated[ResidualMode, "residual connections with norm=none: all, between (not in the first layer) or none"] = (
        "all"
    )
    reversible: Annotated[
        ReversibleMode,
        "reversible layers (Reformer): memory constant in depth; halves: two streams of half the size",
    ] = False
    embeddings: Annotated[
        InputEmbeddingConfig | None, "input embedding other than a token table, such as char-cnn (ELMo); none: a token table"
    ] = None
    norm_bias: Annotated[bool, "bias in LayerNorm"] = True
    max_position_embeddings: Annotated[PosInt, "maximum sequence length in tokens"] = 512
    position_embedding_type: Annotated[
        Literal["absolute", "sinusoidal", "none"] | AxialPositionsConfig,
        "learned (absolute), sinusoidal or axial (Reformer) position embeddings; none with RoPE",
    ] = "absolute"
    scale_embeddings: Annotated[bool, "multiply token embeddings by sqrt(hidden_size) (Vaswani et al. 2017)"] = False
    type_vocab_size: Annotated[NonNegInt, "number of segment types (token_type_ids); 0: no segment embeddings"] = 2
    embedding_norm: Annotated[bool, "LayerNorm on the embeddings (BERT; not in GPT)"] = True
    first_attention_norm: Annotated[
        bool, "norm=pre: LayerNorm before the first layer's attention (not in ModernBERT, where the embedding norm serves)"
    ] = True
    hidden_dropout_prob: Annotated[Probability, "dropout on the embeddings and on the output of each sublayer"] = 0.1
    layer_norm_eps: Annotated[PosFloat, "epsilon of LayerNorm"] = 1e-12
    initializer_range: Annotated[
        PosFloat | None, "standard deviation of initial weights; default: 0.02 (BERT), times sqrt(768 / hidden_size) below 768"
    ] = None
    pooling: Annotated[
        PoolingMode,
        "sequence representation: cls (first token; last if causal), mean or max over tokens, concat (all three, ULMFiT)",
    ] = "cls"
    pooler_act: Annotated[PoolActivation, "activation of the pooler (tanh in BERT); none: no pooler layer (GPT)"] = "tanh"
    head_transform: Annotated[
        bool, "dense layer, activation and LayerNorm before the classifier of a task (ModernBERT, with pooler_act=none)"
    ] = False

    @classmethod
    def presets(cls) -> dict[str, "EncoderConfig"]:
        """Architectures of the papers by name."""
        from .presets import PRESETS  # values of this class

        return PRESETS

    @property
    def init_std(self) -> float:
        """Standard deviation of initial weights: `initializer_range`, or that of a model of this width.

        0.02 fits BERT's width of 768. In a narrower model it makes attention scores, and thus their gradients, so small that
        the model stays at the unigram baseline for hundreds of steps; std * sqrt(hidden_size) as in BERT avoids that.
        """
        default = BERT_INIT_STD * max(1.0, BERT_HIDDEN_SIZE / self.stack_size) ** 0.5
        return default if self.initializer_range is None else self.initializer_range

    @property
    def embedding_dim(self) -> int:
        """Dimension of the token, position and segment embeddings (before the projection to the hidden size)."""
        return self.embedding_size or self.stack_size if self.embeddings is None else self.stack_size

    @property
    def stack_size(self) -> int:
        """The hidden size, or half of it where each of two directions has a stack of that size."""
        return self.hidden_size // 2 if self.separates_directions else self.hidden_size

    @property
    def token_table_dim(self) -> int:
        """Dimension of the token embedding table; 0: the model has none."""
        return self.embedding_dim if self.embeddings is None else self.embeddings.token_table_dim(self.hidden_size)

    @property
    def pooled_size(self) -> int:
        """Dimension of the pooled tokens: three times the hidden size with pooling=concat."""
        return self.hidden_size * (3 if self.pooling == "concat" else 1)

    @property
    def text_size(self) -> int:
        """Dimension of a text that heads read: the pooler's output, or the pooled tokens if there is no pooler."""
        return self.pooled_size if self.pooler_act == "none" else self.hidden_size

    @property
    def head_activation(self) -> Activation:
        """Activation of the pre-training heads: that of the feed-forward, or gelu without one."""
        return self.feedforward.hidden_act if self.feedforward else "gelu"

    @property
    def is_causal(self) -> bool:
        """Whether no token depends on a later one, in the input embedding and in every layer; the last then depends on all."""
        components = [
            self.embeddings,
            *([self.mixer, self.layer_types and self.layer_types.mixer] if self.num_hidden_layers else []),
        ]
        causal_flags = [getattr(component, "causal", False) for component in components if component is not None]
        return bool(causal_flags) and all(causal_flags)

    @property
    def separates_directions(self) -> bool:
        """Whether the stack is two Transformers, left to right and right to left, which share the embeddings alone (biLM)."""
        return isinstance(self.mixer, Attention) and self.mixer.directions == "apart"

    @property
    def spells_words(self) -> bool:
        """Whether the input embedding computes each distinct word of a batch from its characters."""
        return getattr(self.embeddings, "spells_words", False)

    @property
    def has_open_vocabulary(self) -> bool:
        """Whether the input embedding gives words outside the vocabulary vectors too, from their characters."""
        return getattr(self.embeddings, "has_open_vocabulary", False)

    def open_vocabulary(self, tokenizer: Tokenizer) -> Tokenizer:
        """The tokenizer for inputs of this encoder: out-of-vocabulary words keep apart if `has_open_vocabulary`."""
        return tokenizer.with_open_vocabulary() if self.has_open_vocabulary else tokenizer

    @property
    def is_vector_table(self) -> bool:
        """Whether a token's hidden state is its row of the embedding table, whatever stands around it (word vectors)."""
        adds = self.position_embedding_type != "none" or self.type_vocab_size or self.embedding_norm or self.scale_embeddings
        changes = adds or self.embeddings is not None or self.norm == "pre" or self.embedding_dim != self.hidden_size
        return not self.num_hidden_layers and not changes

    @property
    def needs_streams(self) -> bool:
        """Whether the model has a memory without effect unless batches continue the text of the batch before."""
        return bool(self.num_hidden_layers) and self.mixer.needs_streams

    @property
    def lacks_position_information(self) -> bool:
        """Whether no position embedding, RoPE or position bias gives the attention layers the order of tokens."""
        mixers = [self.mixer, *([self.layer_types.mixer] if self.layer_types else [])]
        return (
            bool(self.num_hidden_layers) and self.position_embedding_type == "none" and not any(map(_encodes_positions, mixers))
        )

    def for_layer(self, layer: int, num_layers: int) -> "EncoderConfig":
        """Config of one layer, whose mixer or attention window may differ from other layers'."""
        mixer = self.layer_types.mixer if self.layer_types and layer % self.layer_types.every else self.mixer
        config = msgspec.structs.replace(self, mixer=mixer.for_layer(layer, num_layers))
        return config._with_layer_size(layer) if self.layer_sizes else config

    def _with_layer_size(self, layer: int) -> "EncoderConfig":
        """The config of a layer with its own heads and feed-forward size."""
        sizes, mixer, feedforward = self.layer_sizes, self.mixer, self.feedforward
        assert sizes is not None
        if sizes.num_attention_heads is not None:
            if not isinstance(mixer, Attention) or mixer.directions == "apart":
                raise UserError(
                    "model.layer_sizes.num_attention_heads needs mixer=attention with directions=joint; leave it out"
                )
            mixer = msgspec.structs.replace(
                mixer,
                num_attention_heads=sizes.num_attention_heads[layer],
                attention_head_size=mixer.head_dim(self.hidden_size),
            )
        if sizes.intermediate_size is not None:
            if feedforward is None:
                raise UserError("model.layer_sizes.intermediate_size needs feed-forward layers; leave it out")
            feedforward = msgspec.structs.replace(feedforward, intermediate_size=sizes.intermediate_size[layer])
        return msgspec.structs.replace(self, mixer=mixer, feedforward=feedforward)

    def attention_config(self) -> Attention:
        """Full attention like the encoder's mixer, for blocks added to the encoder (decoder, cross-attention).

        Heads, bias, dropout and RoPE are the mixer's where it has them; without position embeddings RoPE is added.
        """
        mixer, hidden_size = self.mixer, self.hidden_size
        if isinstance(mixer, Attention):
            return msgspec.structs.replace(mixer, directions="joint")
        default_heads = next(heads for heads in range(max(1, hidden_size // 64), 0, -1) if hidden_size % heads == 0)
        heads = getattr(mixer, "num_attention_heads", default_heads)
        rope_theta = getattr(mixer, "rope_theta", None) or (
            None if self.position_embedding_type != "none" else DEFAULT_ROPE_THETA
        )
        shared_fields = {name: getattr(mixer, name) for name in ("bias", "attention_dropout") if hasattr(mixer, name)}
        return Attention(
            num_attention_heads=default_heads if hidden_size % heads else heads, rope_theta=rope_theta, **shared_fields
        )

    def build_layer_norm(self, hidden_size: int | None = None) -> nn.LayerNorm:
        return nn.LayerNorm(hidden_size or self.hidden_size, eps=self.layer_norm_eps, bias=self.norm_bias)

    def build_feedforward(self) -> nn.Module | None:
        """The feed-forward sublayer of a block, if it has one."""
        if self.feedforward is None:
            return None
        if self.separates_directions:
            return SeparateFeedForward(self.feedforward.build, self.hidden_size)
        return self.feedforward.build(self.hidden_size)

    def build_block_norm(self) -> AddNorm | SeparateAddNorm:
        """Residual connection and LayerNorm around a sublayer of a block, or at the end of a pre-norm stack."""
        return SeparateAddNorm(self.build_add_norm, self.hidden_size) if self.separates_directions else self.build_add_norm()

    def build_add_norm(self, hidden_size: int | None = None) -> AddNorm:
        return AddNorm(
            hidden_size or self.hidden_size,
            self.layer_norm_eps,
            self.norm_bias,
            self.hidden_dropout_prob,
            self.norm == "pre",
        )

    def build_mixer_residual(self, is_first_block: bool) -> AddNorm | SeparateAddNorm | ResidualAdd | NoNorm:
        """Residual connection around the mixer; ModernBERT has no LayerNorm before the first one."""
        return self.build_residual(is_first_block) if self.first_attention_norm or not is_first_block else NoNorm()

    def build_residual(self, is_first_block: bool) -> AddNorm | SeparateAddNorm | ResidualAdd:
        """Residual connection around a sublayer, with LayerNorm unless norm=none."""
        adds_residual = self.residual == "all" or (self.residual == "between" and not is_first_block)
        return ResidualAdd(self.hidden_dropout_prob, adds_residual) if self.norm == "none" else self.build_block_norm()


def _encodes_positions(mixer: MixerConfig) -> bool:
    """Whether the mixer depends on token order: convolution and recurrence do, attention only with RoPE or a position bias."""
    if isinstance(mixer, Attention | Longformer):
        return bool(mixer.rope_theta or getattr(mixer, "position_bias", None))
    return not isinstance(mixer, Reformer | ReformerChunked)
