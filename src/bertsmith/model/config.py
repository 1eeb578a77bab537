"""`EncoderConfig`, the architecture of an encoder: the `model` section of a recipe."""

from typing import Annotated, ClassVar, Literal

import msgspec
from torch import nn

from ..config import Config, NonNegInt, PosFloat, PosInt, Probability
from .embeddings import InputEmbeddingConfig
from .mixers import Attention, LiteTransformer, Longformer, MixerConfig, Reformer, ReformerChunked
from .mixers.reformer.reversible import ReversibleMode
from .positions import AxialPositionsConfig
from .sublayers import Activation, AddNorm, FeedForwardConfig, PoolActivation, ResidualAdd

DEFAULT_ROPE_THETA = 10_000.0  # base of the RoPE frequencies in Su et al. 2021
PoolingMode = Literal["cls", "mean", "max"]
ResidualMode = Literal["all", "between", "none"]


class LayerTypes(Config, frozen=True):
    """Layers with another mixer: layer i uses `model.mixer` if i % every == 0, else this `mixer` (ModernBERT, every=3)."""

    every: Annotated[PosInt, "of so many blocks the first mixes as model.mixer says"] = 3
    mixer: Annotated[Attention | Longformer | LiteTransformer, "how tokens exchange information in the others"] = Longformer(
        attention_window=(128,), global_attention=False
    )


class EncoderConfig(Config, frozen=True):
    """Architecture of an encoder; the defaults are BERT-base."""

    num_hidden_layers: Annotated[NonNegInt, "blocks, one above another; 0: the vectors of the tokens are all"] = 12
    num_hidden_groups: Annotated[
        PosInt | None, "different blocks, each called several times in turn, as ALBERT; else all differ"
    ] = None
    hidden_size: Annotated[PosInt, "numbers a token is made of"] = 768
    embedding_size: Annotated[
        PosInt | None, "numbers in the tables, projected to the width after their norm; else the width"
    ] = None
    mixer: Annotated[MixerConfig, "how tokens exchange information"] = Attention()
    layer_types: Annotated[
        LayerTypes | None, "blocks that mix otherwise, such as by a window in two of three; none: all alike"
    ] = None
    feedforward: Annotated[FeedForwardConfig | None, "what each token does by itself; none: nothing"] = FeedForwardConfig()
    norm: Annotated[Literal["post", "pre", "none"], "after each part, as BERT, before it, or none in the blocks"] = "post"
    residual: Annotated[ResidualMode, "norm=none: parts add to what they read, do so behind the first block, or never"] = "all"
    reversible: Annotated[
        ReversibleMode,
        "blocks that can be run backwards, as Reformer: depth costs no memory; halves: each side has half the width",
    ] = False
    embeddings: Annotated[InputEmbeddingConfig | None, "what makes vectors of tokens, if not tables"] = None
    norm_bias: Annotated[bool, "norms shift as well as scale"] = True
    max_position_embeddings: Annotated[PosInt, "the longest sequence it can read"] = 512
    position_embedding_type: Annotated[
        Literal["absolute", "sinusoidal", "none"] | AxialPositionsConfig,
        "learn a vector for each position, or take waves (Vaswani et al. 2017), or learn rows and columns (Reformer); "
        "rotary needs none",
    ] = "absolute"
    scale_embeddings: Annotated[
        bool, "vectors of tokens times the root of their width before positions join, as the Transformer"
    ] = False
    type_vocab_size: Annotated[NonNegInt, "kinds of segment: A and B; 0: none, and no table of them"] = 2
    embedding_norm: Annotated[bool, "norm the sum of the tables, as BERT; GPT does not"] = True
    hidden_dropout_prob: Annotated[Probability, "on embeddings and on what each part adds"] = 0.1
    layer_norm_eps: Annotated[PosFloat, "of the norms"] = 1e-12
    initializer_range: Annotated[PosFloat, "of new weights; narrow models begin to use context sooner with more"] = 0.02
    pooling: Annotated[
        PoolingMode, "what stands for a text: its first token (a causal model's last), the mean or most of all"
    ] = "cls"
    pooler_act: Annotated[PoolActivation, "of the row that stands for a text: tanh as BERT; none: as it is, as GPT"] = "tanh"

    presets: ClassVar[dict[str, "EncoderConfig"]] = {}

    @property
    def embedding_dim(self) -> int:
        """Dimension of the token, position and segment embeddings (before the projection to the hidden size)."""
        return self.embedding_size or self.hidden_size if self.embeddings is None else self.hidden_size

    @property
    def token_table_dim(self) -> int:
        """Dimension of the token embedding table; 0: the model has none."""
        return self.embedding_dim if self.embeddings is None else self.embeddings.token_table_dim

    @property
    def head_activation(self) -> Activation:
        """Activation of the pre-training heads: that of the feed-forward, or gelu without one."""
        return self.feedforward.hidden_act if self.feedforward else "gelu"

    @property
    def is_causal(self) -> bool:
        """Whether no token sees a later one, in the input embedding and in every layer; the last token then sees all."""
        components = [
            self.embeddings,
            *([self.mixer, self.layer_types and self.layer_types.mixer] if self.num_hidden_layers else []),
        ]
        causal_flags = [getattr(component, "causal", False) for component in components if component is not None]
        return bool(causal_flags) and all(causal_flags)

    @property
    def lacks_position_information(self) -> bool:
        """Whether no position embedding, RoPE or position bias tells the attention layers the order of tokens."""
        mixers = [self.mixer, *([self.layer_types.mixer] if self.layer_types else [])]
        return (
            bool(self.num_hidden_layers) and self.position_embedding_type == "none" and not any(map(_encodes_positions, mixers))
        )

    def for_layer(self, layer: int, num_layers: int) -> "EncoderConfig":
        """Config of one layer, whose mixer or attention window may differ from other layers'."""
        mixer = self.layer_types.mixer if self.layer_types and layer % self.layer_types.every else self.mixer
        mixer = (
            mixer.for_layer(layer, num_layers) if isinstance(mixer, Longformer | LiteTransformer | ReformerChunked) else mixer
        )
        return msgspec.structs.replace(self, mixer=mixer)

    def attention_config(self) -> Attention:
        """Full attention like the encoder's mixer, for blocks added to the encoder (decoder, cross-attention).

        Heads, bias, dropout and RoPE are the mixer's where it has them; without position embeddings RoPE is added.
        """
        mixer, hidden_size = self.mixer, self.hidden_size
        if isinstance(mixer, Attention):
            return mixer
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

    def build_add_norm(self, hidden_size: int | None = None) -> AddNorm:
        return AddNorm(
            hidden_size or self.hidden_size,
            self.layer_norm_eps,
            self.norm_bias,
            self.hidden_dropout_prob,
            self.norm == "pre",
        )

    def build_residual(self, is_first_block: bool) -> AddNorm | ResidualAdd:
        """Residual connection around a sublayer, with LayerNorm unless norm=none."""
        adds_residual = self.residual == "all" or (self.residual == "between" and not is_first_block)
        return ResidualAdd(self.hidden_dropout_prob, adds_residual) if self.norm == "none" else self.build_add_norm()


def _encodes_positions(mixer: MixerConfig) -> bool:
    """Whether the mixer knows token order: convolution and recurrence do, attention only with RoPE or a position bias."""
    if isinstance(mixer, Attention | Longformer):
        return bool(mixer.rope_theta or getattr(mixer, "position_bias", None))
    return not isinstance(mixer, Reformer | ReformerChunked)
