"""Attention from an answer to its source: every token written looks at all that was read."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...config import Chance, Count, Variant
from ...errors import BadInput
from ..batch import Inputs
from ..mixers import Dense, LongShort, Window
from ..mixers.attention import DenseAttention, Past
from ..mixers.lite_transformer import LongShortMixer
from ..packing import Layout
from ..sublayers import FeedForward, Join, halved
from ..transformer import Block
from .base import Decoder, looked_up

if TYPE_CHECKING:
    from ..config import EncoderConfig
    from ..encoder import Encoder


Seen = tuple[Tensor, Tensor]  # keys and values of sources, (rows, heads, longest, width of a head)


class Crossing(nn.Module):
    """Queries of the answer, keys and values of the source by one matrix; with the norm behind it, or before it."""

    def __init__(self, config: "EncoderConfig") -> None:
        super().__init__()
        assert isinstance(config.mixer, Dense | LongShort)
        width, bias = config.width, config.mixer.bias
        halves = 2 if isinstance(config.mixer, LongShort) else 1  # whose heads are of half the width
        self.heads, self.dropout = halves * config.mixer.heads, config.mixer.dropout
        self.q, self.kv, self.out = (nn.Linear(width, times * width, bias=bias) for times in (1, 2, 1))
        self.kv.weight.parts = 2  # type: ignore[attr-defined]  # an optimizer may treat each by itself
        self.norm = config.join()

    def forward(self, x: Tensor, layout: Layout, source: Tensor, keys: Layout) -> Tensor:
        """(tokens of the answers, width): what each finds in the source of its answer."""
        k, v = self._split(source)
        q = self.q(x).unflatten(-1, (self.heads, -1))
        dropout = self.dropout if self.training else 0.0
        return self.out(layout.attend(q, k, v, dropout=dropout, keys=keys).flatten(-2))

    def keys(self, source: Tensor, layout: Layout) -> Seen:
        """What every step will look at, computed once."""
        k, v = (layout.grid(part).transpose(1, 2).contiguous() for part in self._split(source))
        return k, v

    def step(self, x: Tensor, seen: Seen, real: Tensor | None) -> Tensor:
        """(rows, width): the same for one token a row."""
        q = self.q(x).unflatten(-1, (self.heads, 1, -1))
        return self.out(F.scaled_dot_product_attention(q, *seen, real).flatten(1))

    def _split(self, source: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.kv(source).unflatten(-1, (2, self.heads, -1)).unbind(-3)
        return k, v


class Attention(Variant, frozen=True):
    """Vaswani et al. 2017; what is not said is as in the encoder."""

    layers: Annotated[Count | None, "blocks, one above another; as many as the encoder has, if none"] = None
    heads: Annotated[Count | None, "attention heads; as the encoder, if none"] = None
    feedforward: Annotated[FeedForward | None, "what each token does by itself; as the encoder, if none"] = None
    norm: Annotated[Literal["after", "before"] | None, "after each part or before it; as the encoder, if none"] = None
    dropout: Annotated[Chance | None, "on what each part adds; as the encoder, if none"] = None
    shared: Annotated[bool, "blocks are the encoder's own, but for attention to the source (BERTShare, Rothe et al. 2020)"] = (
        False
    )

    def build(self, encoder: "EncoderConfig") -> "AttentionDecoder":
        return AttentionDecoder(self, encoder)

    def within(self, encoder: "EncoderConfig") -> "EncoderConfig":
        """The blocks of this decoder as an encoder's: what is not said is taken from there."""
        given = encoder.mixer if isinstance(encoder.mixer, LongShort) else encoder.attention()
        mixer = msgspec.structs.replace(given, heads=self.heads or given.heads, causal=True)
        fed = self.feedforward or encoder.feedforward or FeedForward(inner=4 * encoder.width)
        norm = self.norm or ("after" if encoder.norm == "none" else encoder.norm)
        dropout = encoder.dropout if self.dropout is None else self.dropout
        own = {"layers": self.layers or max(1, encoder.layers), "groups": None, "others": None, "residual": "all"}
        return msgspec.structs.replace(encoder, mixer=mixer, feedforward=fed, norm=norm, dropout=dropout, **own)


@dataclass(frozen=True)
class State:
    """A row for each answer being written."""

    past: list[Past]  # of each block, what is written; nothing yet at the first place
    seen: list[Seen]  # of each block: keys and values of the source
    real: Tensor | None  # (rows, 1, 1, longest) of the sources; None if all are as long
    owner: Tensor  # (rows,): the text each row answers
    place: int


class AttentionDecoder(Decoder):
    def __init__(self, config: Attention, encoder: "EncoderConfig") -> None:
        super().__init__()
        self.config, own = config, config.within(encoder)
        if config.shared and (config.heads, config.feedforward, config.norm, config.layers) != (None,) * 4:
            raise BadInput("decoder.shared=true takes the encoder's blocks as they are; leave out the decoder's own settings")
        plain = isinstance(encoder.mixer, Dense) and not encoder.others
        if config.shared and (not plain or encoder.norm == "none" or not encoder.feedforward):
            raise BadInput("decoder.shared=true shares blocks of dense attention with norms, and this encoder has others")
        count = 0 if config.shared else own.layers
        self.blocks = nn.ModuleList(Block(own.at(number, count)) for number in range(count))
        for block in self.blocks[1:]:
            block.mixer.share(self.blocks[0].mixer)  # type: ignore[union-attr, operator]
        self.crossings = nn.ModuleList(Crossing(own) for _ in range(own.layers))
        self.own = own
        self.norm_first = own.norm == "before"
        self.norm = own.join() if self.norm_first else nn.Identity()

    def forward(self, answer: Inputs, source: Tensor, layout: Layout, encoder: "Encoder") -> Tensor:
        stream, said = halved(encoder.embed(answer)), None
        for block, crossing in self._layers(encoder):
            said, stream = self._read(block, crossing, said, stream, answer.layout, source, layout)
        return self._left(said, stream, answer.wanted)

    def start_from(self, encoder: "Encoder") -> str | None:
        """Each block begins as the encoder's of its number (BERT2BERT), as far as both are of one kind; what is new is told.
        Attention to the source always is."""
        stack, said = encoder.stack, self.config
        if len(self.blocks) > len(stack.turns):
            raise BadInput(f"decoder.layers={len(self.blocks)} is more than the {len(stack.turns)} blocks of the encoder, "
                           "which they begin as; lower it, or begin anew with scratch=true")  # fmt: skip
        fed, mixed = self._alike(encoder.config)
        if not mixed and (said.heads, said.feedforward, said.norm) != (None,) * 3:
            raise BadInput("the decoder's blocks are not of the encoder's kind, and cannot begin as those; leave out "
                           "decoder.heads, feedforward and norm, or begin anew with scratch=true")  # fmt: skip
        for number, block in enumerate(self.blocks):
            _filled(block, stack.blocks[stack.turns[number]], fed, mixed)
        if fed and isinstance(self.norm, Join) and isinstance(stack.norm, Join):
            self.norm.load_state_dict(stack.norm.state_dict())
        return None if mixed or not self.blocks else "what its tokens see of each other" if fed else "all of it"

    def _alike(self, encoder: "EncoderConfig") -> tuple[bool, bool]:
        """Whether norms and feed-forwards are as the encoder's, and attention too, but for what it may not see."""
        fed = (self.own.feedforward, self.own.norm) == (encoder.feedforward, encoder.norm)
        attention = msgspec.structs.replace(encoder.attention(), causal=True)
        return fed, fed and isinstance(encoder.mixer, Dense | Window) and self.own.mixer == attention

    def begin(self, source: Tensor, layout: Layout, encoder: "Encoder") -> State:
        heads = [crossing.keys(source, layout) for _, crossing in self._layers(encoder)]
        real = None if layout.even else layout.real()[:, None, None]
        return State([], heads, real, torch.arange(layout.sequences, device=source.device), 0)

    def step(self, state: State, tokens: Tensor, encoder: "Encoder") -> tuple[State, Tensor]:
        stream, said = halved(looked_up(encoder, tokens, state.place)), None
        past: list[Past] = []
        for number, (block, crossing) in enumerate(self._layers(encoder)):
            x, stream = self._entered(block, said, stream)
            assert isinstance(block.mixer, DenseAttention | LongShortMixer)
            mixed, kept = block.mixer.step(x, state.past[number] if state.past else None, state.place)
            past.append(kept)
            x, stream = (crossing.norm if self.norm_first else block.mixer_norm)(stream, mixed)
            said, stream = self._fed(block, crossing, stream, crossing.step(x, state.seen[number], state.real))
        return replace(state, past=past, place=state.place + 1), self._left(said, stream, None)

    def reorder(self, state: State, rows: Tensor) -> State:
        past = [tuple(part.index_select(0, rows) for part in kept) for kept in state.past]
        owner = state.owner.index_select(0, rows)
        if torch.equal(owner, state.owner):  # the same texts in the same places, as from step to step of a beam
            return replace(state, past=past)
        real = None if state.real is None else state.real.index_select(0, rows)
        seen = [(k.index_select(0, rows), v.index_select(0, rows)) for k, v in state.seen]
        return State(past, seen, real, owner, state.place)

    def _layers(self, encoder: "Encoder") -> list[tuple[Block, Crossing]]:
        stack = encoder.stack
        blocks = [stack.blocks[turn] for turn in stack.turns] if self.config.shared else list(self.blocks)
        return list(zip(blocks, self.crossings, strict=True))  # type: ignore[arg-type]

    def _read(
        self, block: Block, crossing: Crossing, said: Tensor | None, stream: Tensor, layout: Layout, source: Tensor,
        keys: Layout,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, stream = self._entered(block, said, stream)
        mixed = _causal(block.mixer, x, layout)
        x, stream = (crossing.norm if self.norm_first else block.mixer_norm)(stream, mixed)
        return self._fed(block, crossing, stream, crossing(x, layout, source, keys))

    def _entered(self, block: Block, said: Tensor | None, stream: Tensor) -> tuple[Tensor, Tensor]:
        if self.norm_first:
            return block.mixer_norm(stream, said)
        return (stream if said is None else said), stream

    def _fed(self, block: Block, crossing: Crossing, stream: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """What was seen in the source joins, and each token thinks by itself."""
        assert block.feedforward is not None and block.feedforward_norm is not None
        x, stream = (block.feedforward_norm if self.norm_first else crossing.norm)(stream, seen)
        said = block.feedforward(x)
        return (said, stream) if self.norm_first else block.feedforward_norm(stream, said)

    def _left(self, said: Tensor | None, stream: Tensor, wanted: Tensor | None) -> Tensor:
        x = self.norm(stream, said)[0] if isinstance(self.norm, Join) else stream
        return x if wanted is None else x.index_select(0, wanted)


def _filled(block: nn.Module, theirs: nn.Module, fed: bool, mixed: bool) -> None:
    """Takes over the weights that mean the same in both."""
    wanted, given = block.state_dict(), theirs.state_dict()
    taken = {
        name: given[name] for name, weight in wanted.items()
        if (mixed if name.startswith("mixer.") else fed) and name in given and given[name].shape == weight.shape
    }  # fmt: skip
    block.load_state_dict(wanted | taken)


def _causal(mixer: nn.Module, x: Tensor, layout: Layout) -> Tensor:
    """A block's own mixing, that sees only what came before, whether it is the decoder's or shared with the encoder."""
    return mixer.mixed(x, layout, causal=True) if isinstance(mixer, DenseAttention) else mixer(x, layout)
