"""An encoder: tokens, places and segments to vectors, then a stack of blocks."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Chance, Config, Count, Positive, Whole
from ..errors import BadInput
from .activations import ACTIVATIONS, Activation, PoolActivation
from .axial import Axial
from .feedforward import FeedForward
from .fronts import Characters, FrontConfig, Grams
from .join import Join, Sum
from .mixers import Adaptive, Chunked, Convolution, Dense, Hashed, LongShort, Lstm, MixerConfig, Recurrent, Window
from .precision import halved
from .reversible import Reversible, Twice
from .sinusoid import sinusoid
from .stack import Stack
from .types import Inputs

Pool = Literal["token", "mean", "max"]
Residual = Literal["all", "between", "none"]


class Others(Config, frozen=True):
    """Blocks that mix otherwise than the model says: all but every n-th, counted from the first."""

    every: Annotated[Count, "of so many blocks the first mixes as model.mixer says"] = 3
    mixer: Annotated[Dense | Window | LongShort, "how tokens exchange information in the others"] = Window(
        reach=(64,), anchors=False
    )


class EncoderConfig(Config, frozen=True):
    """What a recipe calls `model`."""

    layers: Annotated[Whole, "blocks, one above another; 0: the vectors of the tokens are all"] = 12
    groups: Annotated[Count | None, "different blocks, each called several times in turn, as ALBERT; else all differ"] = None
    width: Annotated[Count, "numbers a token is made of"] = 768
    embedding: Annotated[Count | None, "numbers in the tables, projected to the width after their norm; else the width"] = None
    mixer: Annotated[MixerConfig, "how tokens exchange information"] = Dense()
    others: Annotated[Others | None, "blocks that mix otherwise, such as by a window in two of three; none: all alike"] = None
    feedforward: Annotated[FeedForward | None, "what each token does by itself; none: nothing"] = FeedForward()
    norm: Annotated[Literal["after", "before", "none"], "after each part, as BERT, before it, or none in the blocks"] = "after"
    residual: Annotated[Residual, "norm=none: parts add to what they read, do so behind the first block, or never"] = "all"
    reversible: Annotated[
        Reversible, "blocks that can be run backwards, as Reformer: depth costs no memory; halves: each side has half the width"
    ] = False
    front: Annotated[FrontConfig | None, "what makes vectors of tokens, if not tables"] = None
    norm_bias: Annotated[bool, "norms shift as well as scale"] = True
    positions: Annotated[Count, "the longest sequence it can read"] = 512
    table: Annotated[
        bool | Literal["sinusoid"] | Axial,
        "learn a vector for each position, or take waves (Vaswani et al. 2017), or learn rows and columns (Reformer); "
        "rotary needs none",
    ] = True
    scaled: Annotated[bool, "vectors of tokens times the root of their width before positions join, as the Transformer"] = False
    segments: Annotated[Whole, "kinds of segment: A and B; 0: none, and no table of them"] = 2
    embedding_norm: Annotated[bool, "norm the sum of the tables, as BERT; GPT does not"] = True
    dropout: Annotated[Chance, "on embeddings and on what each part adds"] = 0.1
    eps: Annotated[Positive, "of the norms"] = 1e-12
    deviation: Annotated[Positive, "of new weights; narrow models begin to use context sooner with more"] = 0.02
    pool: Annotated[Pool, "what stands for a text: its first token (a causal model's last), the mean or most of all"] = "token"
    pooler: Annotated[PoolActivation, "of the row that stands for a text: tanh as BERT; none: as it is, as GPT"] = "tanh"

    presets: ClassVar[dict[str, "EncoderConfig"]] = {}

    @property
    def embedded(self) -> int:
        """The width of the tables, and of what is added to them."""
        return self.embedding or self.width if self.front is None else self.width

    @property
    def activation(self) -> Activation:
        """Of the heads of pre-training: that of the blocks, if they have one."""
        return self.feedforward.activation if self.feedforward else "gelu"

    @property
    def causal(self) -> bool:
        """No token sees what follows it, so that the last of a text is the one that knows the whole."""
        parts = [self.front, *([self.mixer, self.others and self.others.mixer] if self.layers else [])]
        mixing = [getattr(part, "causal", False) for part in parts if part is not None]
        return bool(mixing) and all(mixing)

    def at(self, layer: int, layers: int) -> "EncoderConfig":
        """That of one block, where its mixer is not the same in all of them."""
        mixer = self.others.mixer if self.others and layer % self.others.every else self.mixer
        mixer = mixer.at(layer, layers) if isinstance(mixer, Window | LongShort | Chunked) else mixer
        return msgspec.structs.replace(self, mixer=mixer)

    def layer_norm(self, width: int | None = None) -> nn.LayerNorm:
        return nn.LayerNorm(width or self.width, eps=self.eps, bias=self.norm_bias)

    def join(self, width: int | None = None) -> Join:
        return Join(width or self.width, self.eps, self.norm_bias, self.dropout, self.norm == "before")

    def joint(self, first: bool) -> Join | Sum:
        """How what a part of a block says joins the stream; `first` of the first block."""
        added = self.residual == "all" or (self.residual == "between" and not first)
        return Sum(self.dropout, added) if self.norm == "none" else self.join()


def bert(layers: int, width: int) -> EncoderConfig:
    """The sizes of Devlin et al. 2018 and Turc et al. 2019: heads of 64, an inner width of four times the outer."""
    return EncoderConfig(layers=layers, width=width, mixer=Dense(heads=width // 64), feedforward=FeedForward(inner=4 * width))


def albert(layers: int, width: int, heads: int) -> EncoderConfig:
    """The sizes of Lan et al. 2020, as its second release has them: one block, tables of 128, no dropout."""
    fed = FeedForward(inner=4 * width, activation="gelu-tanh")
    return EncoderConfig(
        layers=layers, groups=1, width=width, embedding=128, mixer=Dense(heads=heads), feedforward=fed, dropout=0.0
    )


def roberta(layers: int, width: int) -> EncoderConfig:
    """The sizes of Liu et al. 2019: BERT's, with one segment."""
    return msgspec.structs.replace(bert(layers, width), segments=1, eps=1e-5)


def electra(layers: int, width: int, embedding: int | None = None) -> EncoderConfig:
    """The discriminators of Clark et al. 2020; objective=replaced gives them a generator while they learn."""
    return msgspec.structs.replace(bert(layers, width), embedding=embedding, pooler="gelu")


def modernbert(layers: int, width: int, inner: int) -> EncoderConfig:
    """As Warner et al. 2024: gates, no biases, rotary positions; every third block sees all, the others 64 tokens around."""
    heads = width // 64
    near = Others(every=3, mixer=Window(heads=heads, reach=(64,), anchors=False, bias=False, rotary=10_000.0))
    return EncoderConfig(
        layers=layers, width=width, mixer=Dense(heads=heads, bias=False, rotary=160_000.0), others=near, norm="before",
        feedforward=FeedForward(inner=inner, gated=True, bias=False), norm_bias=False, positions=8192, table=False, segments=0,
        dropout=0.0, eps=1e-5, pooler="gelu",
    )  # fmt: skip


def lite(layers: int, width: int) -> EncoderConfig:
    """BERT as Wu et al. 2020 would have it: half of the channels filtered, feed-forwards no wider than what they read."""
    mixer = LongShort(heads=width // 128, filters=width // 128)
    return EncoderConfig(layers=layers, width=width, mixer=mixer, feedforward=FeedForward(inner=width))


def reformer(layers: int, width: int, side: int) -> EncoderConfig:
    """The parts of Kitaev et al. 2020, for texts up to a square of this side: hashes, reversible blocks, axial positions."""
    return EncoderConfig(
        layers=layers, width=width, mixer=Hashed(heads=width // 64, buckets=(16, 16)), norm="before", reversible=True,
        feedforward=FeedForward(inner=4 * width), positions=side * side, table=Axial(shape=(side, side)), eps=1e-5,
    )  # fmt: skip


def longformer(layers: int, width: int) -> EncoderConfig:
    """The sizes of Beltagy et al. 2020, which are RoBERTa's: windows of 512, texts of 4,096 tokens, one segment."""
    return msgspec.structs.replace(bert(layers, width), mixer=Window(heads=width // 64), positions=4096, segments=1, eps=1e-5)


def gpt(layers: int, width: int, heads: int, norm: Literal["after", "before"], positions: int) -> EncoderConfig:
    """The sizes of Radford et al. 2018 (norms after) and 2019 (norms before, one behind the last block)."""
    return EncoderConfig(
        layers=layers, width=width, mixer=Dense(heads=heads, causal=True), norm=norm, positions=positions, segments=0,
        feedforward=FeedForward(inner=4 * width, activation="gelu-tanh"), embedding_norm=False, eps=1e-5, pooler="none",
    )  # fmt: skip


def transformer(layers: int, width: int, heads: int) -> EncoderConfig:
    """The sizes of Vaswani et al. 2017; a decoder stands beside it."""
    fed = FeedForward(inner=4 * width, activation="relu")
    return EncoderConfig(
        layers=layers, width=width, mixer=Dense(heads=heads), feedforward=fed, table="sinusoid", scaled=True, segments=0,
        embedding_norm=False, eps=1e-5, deviation=round(width**-0.5, 3), pooler="none",
    )  # fmt: skip


def streaming(layers: int, width: int, inner: int, mixer: Recurrent | Adaptive, **more: Any) -> EncoderConfig:
    """The sizes of Dai et al. 2019 (of words, and of characters) and Sukhbaatar et al. 2019: positions are distances."""
    return EncoderConfig(
        layers=layers, width=width, mixer=mixer, feedforward=FeedForward(inner=inner, activation="relu"), table=False,
        segments=0, embedding_norm=False, eps=1e-5, positions=16_384, pooler="none", **more,
    )  # fmt: skip


def before_attention(layers: int, width: int, mixer: Lstm | Convolution, **more: Any) -> EncoderConfig:
    """Blocks that are a mixer and nothing else: a text is what any of its tokens says loudest."""
    given: dict[str, Any] = {"pool": "max", "residual": "none", "dropout": 0.3, "deviation": 0.1} | more
    return EncoderConfig(
        layers=layers, width=width, mixer=mixer, feedforward=None, norm="none", table=False, embedding_norm=False,
        pooler="none", **given,
    )  # fmt: skip


def elmo(layers: int, width: int, hidden: int, residual: Residual) -> EncoderConfig:
    """The sizes of Peters et al. 2018: half the width reads forward, half backward; cells are clipped at 3."""
    cells, more = Lstm(directions="apart", hidden=hidden, clip=3.0), {"residual": residual, "segments": 0, "pool": "mean"}
    return before_attention(layers, width, cells, front=Characters(), positions=2048, dropout=0.1, deviation=0.05, **more)


def nnlm(order: int, numbers: int, inner: int, direct: bool = True) -> EncoderConfig:
    """Bengio et al. 2003: what the words just read make together, and no blocks above it."""
    front = Grams(order=order, numbers=numbers, inner=inner, direct=direct)
    return EncoderConfig(
        layers=0, width=front.width, front=front, feedforward=None, norm="none", positions=4096, table=False, segments=0,
        embedding_norm=False, dropout=0.0, deviation=0.05, pooler="none",
    )  # fmt: skip


EncoderConfig.presets.update(
    {
        "bert-tiny": bert(2, 128),
        "bert-mini": bert(4, 256),
        "bert-small": bert(4, 512),
        "bert-medium": bert(8, 512),
        "bert-base": bert(12, 768),
        "bert-large": bert(24, 1024),
        "albert-base": albert(12, 768, 12),
        "albert-large": albert(24, 1024, 16),
        "albert-xlarge": albert(24, 2048, 16),
        "albert-xxlarge": albert(12, 4096, 64),
        "roberta-base": roberta(12, 768),
        "roberta-large": roberta(24, 1024),
        "distilbert": msgspec.structs.replace(bert(6, 768), segments=1, pooler="relu"),
        "electra-small": electra(12, 256, 128),
        "electra-base": electra(12, 768),
        "electra-large": electra(24, 1024),
        "modernbert-mini": modernbert(6, 256, 384),
        "modernbert-base": modernbert(22, 768, 1152),
        "modernbert-large": modernbert(28, 1024, 2624),
        "lite-mini": lite(4, 256),
        "lite-base": lite(12, 768),
        "reformer-mini": reformer(4, 256, 64),
        "reformer-base": reformer(12, 768, 128),
        "longformer-mini": longformer(4, 256),
        "longformer-base": longformer(12, 768),
        "longformer-large": longformer(24, 1024),
        "transformer": transformer(6, 512, 8),
        "transformer-big": transformer(6, 1024, 16),
        "transformer-small": transformer(3, 256, 4),
        "textcnn": before_attention(1, 300, Convolution()),
        "bilstm": before_attention(2, 256, Lstm()),
        "elmo": elmo(2, 1024, 4096, "between"),
        "taglm": elmo(1, 1024, 2048, "none"),
        "nnlm": nnlm(5, 60, 100),
        "gpt": gpt(12, 768, 12, "after", 512),
        "gpt2": gpt(12, 768, 12, "before", 1024),
        "gpt2-medium": gpt(24, 1024, 16, "before", 1024),
        "gpt2-large": gpt(36, 1280, 20, "before", 1024),
        "gpt2-xl": gpt(48, 1600, 25, "before", 1024),
        "transformer-xl": streaming(16, 410, 2100, Recurrent(heads=10, remembers=150, recalls=640), scaled=True),
        "transformer-xl-char": streaming(12, 512, 2048, Recurrent(heads=8, remembers=512, recalls=2100), scaled=True),
        "adaptive-span": streaming(12, 512, 2048, Adaptive(heads=8, longest=8192, causal=True)),
    }
)


class Encoder(nn.Module):
    waves: Tensor | None  # (positions, width) of fixed positions

    def __init__(self, config: EncoderConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        rows = config.embedded if config.front is None else config.front.table
        self.tokens: nn.Embedding = nn.Embedding(vocabulary, rows) if rows else None  # type: ignore[assignment]
        self.front = config.front.build(config.width, vocabulary) if config.front else None
        self.positions = nn.Embedding(config.positions, config.embedded) if config.table is True else None
        axial = config.table if isinstance(config.table, Axial) else None
        self.axial = axial.build(config.positions, config.embedded) if axial else None
        waves = sinusoid(config.positions, config.embedded) if config.table == "sinusoid" else None
        self.register_buffer("waves", waves, persistent=False)
        self.segments = nn.Embedding(config.segments, config.embedded) if config.segments else None
        self.norm = config.join(config.embedded) if config.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.widen = _widened(config)
        self.stack = Stack(config)
        self.pooler = nn.Linear(config.width, config.width) if config.pooler != "none" else nn.Identity()

    def forward(self, inputs: Inputs, kept: list[Tensor] | None = None) -> Tensor:
        """(tokens, width), or of those wanted; embedded tokens and what leaves each block go into `kept`, if it is given."""
        x = self.embed(inputs)
        if kept is not None:
            kept.append(x)
        for mixer in self.stack.mixers:
            mixer.ready()
        return self.stack(x, inputs.layout, kept, inputs.wanted, inputs.memory)

    def texts(self, inputs: Inputs, hidden: Tensor | None = None) -> Tensor:
        """(sequences, width): the row that stands for each text, yet to be pooled; of `hidden`, if all rows are there."""
        layout = inputs.layout
        if self.config.pool == "token":
            wanted = layout.lasts if self.config.causal else layout.firsts
            return self(replace(inputs, wanted=wanted)) if hidden is None else hidden.index_select(0, wanted)
        hidden = self(inputs) if hidden is None else hidden
        return layout.mean(hidden) if self.config.pool == "mean" else layout.most(hidden)

    def pool(self, rows: Tensor) -> Tensor:
        """(rows, width): what stands for whole texts, from the token of each that does."""
        return rows if self.config.pooler == "none" else ACTIVATIONS[self.config.pooler](self.pooler(rows))

    def embed(self, inputs: Inputs) -> Tensor:
        """(tokens, width): what enters the first block, here or of a decoder."""
        return self.widen(self.tabled(inputs))

    def tabled(self, inputs: Inputs) -> Tensor:
        """(tokens, width of the tables): their sum, normed."""
        limit = self.config.positions
        if inputs.layout.longest > limit:
            raise BadInput(f"a text of {inputs.layout.longest} tokens is longer than the model's {limit} positions; cut it, or "
                           f"build the model with model.positions={inputs.layout.longest}")  # fmt: skip
        x = self._looked_up(inputs)
        x = x * x.shape[-1] ** 0.5 if self.config.scaled else x
        x = x if self.segments is None else x + F.embedding(self._kinds(inputs), halved(self.segments.weight))
        x = x if self.positions is None else x + F.embedding(inputs.layout.place, halved(self.positions.weight))
        x = x if self.axial is None else x + self.axial(inputs.layout.place)
        x = x if self.waves is None else x + self.waves.to(x.dtype)[inputs.layout.place]
        x = x if inputs.nudge is None else x + inputs.nudge
        return self.drop(self.norm(x, None)[0] if isinstance(self.norm, Join) else x)

    def _looked_up(self, inputs: Inputs) -> Tensor:
        if self.front is None:
            return F.embedding(inputs.tokens, halved(self.tokens.weight))
        return halved(self.front(inputs.tokens, inputs.layout, self.tokens))

    def _kinds(self, inputs: Inputs) -> Tensor:
        """(tokens,): segment A or B of each."""
        if inputs.segments is None or self.config.segments == 1:  # such a model was never told of a segment B
            return torch.zeros_like(inputs.tokens)
        return inputs.segments


def _widened(config: EncoderConfig) -> nn.Module:
    """From the tables' width to the model's."""
    if config.embedding is None or config.front:
        return nn.Identity()
    if config.reversible == "halves" and 2 * config.embedding == config.width:
        return Twice()
    return nn.Linear(config.embedding, config.width)
