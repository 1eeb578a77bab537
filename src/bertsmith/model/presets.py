"""`PRESETS`: architectures and sizes of the papers by name (`model=bert-base`)."""

from typing import Any, Literal

import msgspec

from .config import BERT_INIT_STD, EncoderConfig, LayerTypes, ResidualMode
from .embeddings import CharCNNConfig, NgramConfig
from .mixers import AdaptiveSpan, Attention, Cnn, LiteTransformer, Longformer, Lstm, Reformer, TransformerXL
from .positions import AxialPositionsConfig
from .sublayers import FeedForwardConfig


def bert(num_layers: int, hidden_size: int) -> EncoderConfig:
    """BERT (Devlin et al. 2018; small sizes: Turc et al. 2019): head_dim 64, intermediate_size 4 * hidden_size."""
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=Attention(num_attention_heads=hidden_size // 64),
        feedforward=FeedForwardConfig(intermediate_size=4 * hidden_size),
    )


def small_bert(num_layers: int, hidden_size: int, **settings: Any) -> EncoderConfig:
    """A published small BERT, with the initial weights of BERT-base (the default for a narrow model is larger)."""
    return msgspec.structs.replace(bert(num_layers, hidden_size), initializer_range=BERT_INIT_STD, **settings)


def albert(num_layers: int, hidden_size: int, num_heads: int) -> EncoderConfig:
    """ALBERT v2 (Lan et al. 2020): one shared block, embedding size 128, no dropout."""
    feedforward = FeedForwardConfig(intermediate_size=4 * hidden_size, hidden_act="gelu-tanh")
    return EncoderConfig(
        num_hidden_layers=num_layers,
        num_hidden_groups=1,
        hidden_size=hidden_size,
        embedding_size=128,
        mixer=Attention(num_attention_heads=num_heads),
        feedforward=feedforward,
        hidden_dropout_prob=0.0,
    )


def roberta(num_layers: int, hidden_size: int) -> EncoderConfig:
    """RoBERTa (Liu et al. 2019): BERT with one segment type."""
    return msgspec.structs.replace(bert(num_layers, hidden_size), type_vocab_size=1, layer_norm_eps=1e-5)


def electra(num_layers: int, hidden_size: int, embedding_size: int | None = None) -> EncoderConfig:
    """ELECTRA discriminator (Clark et al. 2020); objective=rtd adds the generator for pre-training."""
    return msgspec.structs.replace(bert(num_layers, hidden_size), embedding_size=embedding_size, pooler_act="gelu")


def modernbert(num_layers: int, hidden_size: int, intermediate_size: int) -> EncoderConfig:
    """ModernBERT (Warner et al. 2024): GeGLU, no biases, RoPE, pre-norm; full attention in every third layer, else a window of
    64 tokens on each side."""
    num_heads = hidden_size // 64
    local_layers = LayerTypes(
        every=3,
        mixer=Longformer(
            num_attention_heads=num_heads, attention_window=(128,), global_attention=False, bias=False, rope_theta=10_000.0
        ),
    )
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=Attention(num_attention_heads=num_heads, bias=False, rope_theta=160_000.0),
        layer_types=local_layers,
        norm="pre",
        feedforward=FeedForwardConfig(intermediate_size=intermediate_size, glu=True, bias=False),
        norm_bias=False,
        max_position_embeddings=8192,
        position_embedding_type="none",
        type_vocab_size=0,
        hidden_dropout_prob=0.0,
        layer_norm_eps=1e-5,
        first_attention_norm=False,
        pooler_act="none",
        head_transform=True,
    )


def lite_transformer(num_layers: int, hidden_size: int) -> EncoderConfig:
    """Lite Transformer (Wu et al. 2020) as an encoder: attention on half of the channels, convolution on the other half,
    intermediate_size = hidden_size."""
    mixer = LiteTransformer(num_attention_heads=hidden_size // 128, num_filters=hidden_size // 128)
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=mixer,
        feedforward=FeedForwardConfig(intermediate_size=hidden_size),
    )


def reformer(num_layers: int, hidden_size: int, axial_size: int) -> EncoderConfig:
    """Reformer (Kitaev et al. 2020): LSH attention, reversible blocks, axial positions for axial_size^2 tokens."""
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=Reformer(num_attention_heads=hidden_size // 64, num_buckets=(16, 16)),
        norm="pre",
        reversible=True,
        feedforward=FeedForwardConfig(intermediate_size=4 * hidden_size),
        max_position_embeddings=axial_size * axial_size,
        position_embedding_type=AxialPositionsConfig(shape=(axial_size, axial_size)),
        layer_norm_eps=1e-5,
    )


def longformer(num_layers: int, hidden_size: int) -> EncoderConfig:
    """Longformer (Beltagy et al. 2020): RoBERTa with a window of 512 (256 on each side) and 4,096 positions."""
    return msgspec.structs.replace(
        bert(num_layers, hidden_size),
        mixer=Longformer(num_attention_heads=hidden_size // 64),
        max_position_embeddings=4096,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )


def gpt(num_layers: int, hidden_size: int, num_heads: int, norm: Literal["post", "pre"], max_positions: int) -> EncoderConfig:
    """GPT (Radford et al. 2018, post-norm) and GPT-2 (2019, pre-norm with a final LayerNorm)."""
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=Attention(num_attention_heads=num_heads, causal=True),
        norm=norm,
        max_position_embeddings=max_positions,
        type_vocab_size=0,
        feedforward=FeedForwardConfig(intermediate_size=4 * hidden_size, hidden_act="gelu-tanh"),
        embedding_norm=False,
        layer_norm_eps=1e-5,
        pooler_act="none",
    )


def transformer(num_layers: int, hidden_size: int, num_heads: int) -> EncoderConfig:
    """The encoder of the Transformer (Vaswani et al. 2017); its decoder is configured separately."""
    feedforward = FeedForwardConfig(intermediate_size=4 * hidden_size, hidden_act="relu")
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=Attention(num_attention_heads=num_heads),
        feedforward=feedforward,
        position_embedding_type="sinusoidal",
        scale_embeddings=True,
        type_vocab_size=0,
        embedding_norm=False,
        layer_norm_eps=1e-5,
        initializer_range=round(hidden_size**-0.5, 3),
        pooler_act="none",
    )


def streaming_lm(
    num_layers: int, hidden_size: int, intermediate_size: int, mixer: TransformerXL | AdaptiveSpan, **overrides: Any
) -> EncoderConfig:
    """Language models over a text stream with relative positions: Transformer-XL (Dai et al. 2019), Adaptive-Span (Sukhbaatar
    et al. 2019)."""
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=mixer,
        feedforward=FeedForwardConfig(intermediate_size=intermediate_size, hidden_act="relu"),
        position_embedding_type="none",
        type_vocab_size=0,
        embedding_norm=False,
        layer_norm_eps=1e-5,
        max_position_embeddings=16_384,
        pooler_act="none",
        **overrides,
    )


def mixer_only(num_layers: int, hidden_size: int, mixer: Lstm | Cnn, **overrides: Any) -> EncoderConfig:
    """Blocks of a mixer alone, without feed-forward, LayerNorm or residual (TextCNN, BiLSTM); max pooling by default."""
    fields: dict[str, Any] = {
        "pooling": "max",
        "residual": "none",
        "hidden_dropout_prob": 0.3,
        "initializer_range": 0.1,
    } | overrides
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=mixer,
        feedforward=None,
        norm="none",
        position_embedding_type="none",
        embedding_norm=False,
        pooler_act="none",
        **fields,
    )


def elmo(num_layers: int, hidden_size: int, cell_size: int, residual: ResidualMode) -> EncoderConfig:
    """ELMo (Peters et al. 2018): character CNN, a forward and a backward LSTM of half the hidden size each, clipped at 3."""
    lstm, options = (
        Lstm(directions="apart", cell_size=cell_size, cell_clip=3.0),
        {"residual": residual, "type_vocab_size": 0, "pooling": "mean"},
    )
    return mixer_only(
        num_layers,
        hidden_size,
        lstm,
        embeddings=CharCNNConfig(),
        max_position_embeddings=2048,
        hidden_dropout_prob=0.1,
        initializer_range=0.05,
        **options,
    )


def elmo_transformer(num_layers: int, hidden_size: int, num_heads: int, intermediate_size: int) -> EncoderConfig:
    """The Transformer biLM (Peters et al. 2018, "Dissecting Contextual Word Embeddings"): a character CNN, and two pre-norm
    Transformers of half the hidden size."""
    return EncoderConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        mixer=Attention(num_attention_heads=num_heads, directions="apart"),
        feedforward=FeedForwardConfig(intermediate_size=intermediate_size, hidden_act="relu"),
        norm="pre",
        embeddings=CharCNNConfig(),
        max_position_embeddings=2048,
        position_embedding_type="sinusoidal",
        type_vocab_size=0,
        embedding_norm=False,
        layer_norm_eps=1e-6,
        pooling="mean",
        pooler_act="none",
    )


def nnlm(order: int, hidden_size: int, **sizes: Any) -> EncoderConfig:
    """NNLM (Bengio et al. 2003): an n-gram input embedding with its hidden layer, and no blocks. `sizes`: of NgramConfig."""
    return EncoderConfig(
        num_hidden_layers=0,
        hidden_size=hidden_size,
        embeddings=NgramConfig(order=order, **sizes),
        feedforward=None,
        norm="none",
        max_position_embeddings=4096,
        position_embedding_type="none",
        type_vocab_size=0,
        embedding_norm=False,
        hidden_dropout_prob=0.0,
        initializer_range=0.05,
        pooler_act="none",
    )


PRESETS = {
    "bert-tiny": small_bert(2, 128),
    "bert-mini": small_bert(4, 256),
    "bert-small": small_bert(4, 512),
    "bert-medium": small_bert(8, 512),
    "bert-base": bert(12, 768),
    "bert-large": bert(24, 1024),
    "albert-base": albert(12, 768, 12),
    "albert-large": albert(24, 1024, 16),
    "albert-xlarge": albert(24, 2048, 16),
    "albert-xxlarge": albert(12, 4096, 64),
    "roberta-base": roberta(12, 768),
    "roberta-large": roberta(24, 1024),
    "distilbert": msgspec.structs.replace(bert(6, 768), type_vocab_size=1, pooler_act="relu"),
    "electra-small": small_bert(12, 256, embedding_size=128, pooler_act="gelu"),
    "electra-base": electra(12, 768),
    "electra-large": electra(24, 1024),
    "modernbert-mini": modernbert(6, 256, 384),
    "modernbert-base": modernbert(22, 768, 1152),
    "modernbert-large": modernbert(28, 1024, 2624),
    "lite-mini": lite_transformer(4, 256),
    "lite-base": lite_transformer(12, 768),
    "reformer-mini": reformer(4, 256, 64),
    "reformer-base": reformer(12, 768, 128),
    "longformer-mini": longformer(4, 256),
    "longformer-base": longformer(12, 768),
    "longformer-large": longformer(24, 1024),
    "transformer": transformer(6, 512, 8),
    "transformer-big": transformer(6, 1024, 16),
    "transformer-small": transformer(3, 256, 4),
    "textcnn": mixer_only(1, 300, Cnn()),
    "bilstm": mixer_only(2, 256, Lstm()),
    "elmo": elmo(2, 1024, 4096, "between"),
    "taglm": elmo(1, 1024, 2048, "none"),
    "elmo-transformer": elmo_transformer(6, 1024, 8, 2048),
    "nnlm": nnlm(5, hidden_size=340),  # 60 features a word, 100 hidden units
    "gpt": gpt(12, 768, 12, "post", 512),
    "gpt2": gpt(12, 768, 12, "pre", 1024),
    "gpt2-medium": gpt(24, 1024, 16, "pre", 1024),
    "gpt2-large": gpt(36, 1280, 20, "pre", 1024),
    "gpt2-xl": gpt(48, 1600, 25, "pre", 1024),
    "transformer-xl": streaming_lm(
        16,
        410,
        2100,
        TransformerXL(num_attention_heads=10, mem_len=150, eval_mem_len=640),
        scale_embeddings=True,
        initializer_range=BERT_INIT_STD,
    ),
    "transformer-xl-char": streaming_lm(
        12,
        512,
        2048,
        TransformerXL(num_attention_heads=8, mem_len=512, eval_mem_len=2100),
        scale_embeddings=True,
        initializer_range=BERT_INIT_STD,
    ),
    "adaptive-span": streaming_lm(12, 512, 2048, AdaptiveSpan(num_attention_heads=8, max_span=8192, causal=True)),
}
