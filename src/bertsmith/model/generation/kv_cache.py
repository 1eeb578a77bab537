"""Keys and values of what was read are kept, so that one more token costs one token and not the whole text again."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Inputs
from ..embeddings import ByRarity
from ..heads import HEAD
from ..model import Model
from ..packing import Layout
from ..position_bias import Apart
from ..positions import turned
from ..segment_memory import Memory
from .search import Ints


@dataclass
class Cache:
    """(2, rows, heads, room, width of a head) for every layer, keys and values, made when the first text goes through it."""

    room: int  # tokens a row may have
    layers: list[Tensor] = field(default_factory=list)
    turn: int = 0  # the layer that is asked next

    def __next__(self) -> Tensor:
        self.turn += 1
        return self.layers[self.turn - 1]

    def chosen(self, rows: Tensor) -> "Cache":
        return Cache(self.room, [layer.index_select(1, rows) for layer in self.layers])


@dataclass(frozen=True, kw_only=True)
class Filling(Layout):
    """Prompts of any lengths, packed as ever; what they are attended by is kept."""

    cache: Cache

    @classmethod
    def around(cls, layout: Layout, cache: Cache) -> "Filling":
        return cls(**{one.name: getattr(layout, one.name) for one in fields(Layout)}, cache=cache)

    def mix(
        self, qkv: Tensor, heads: int, turns: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        apart: Apart | None = None,
    ) -> Tensor:  # fmt: skip
        if turns is not None:
            qkv = turned(qkv, turns, self.place, heads)
        new = qkv.unflatten(-1, (3, heads, -1))[:, 1:]  # (tokens, 2, heads, width of a head)
        # Zeros: what stands behind a short text is not looked at, but no number times 0 is no number.
        layer = new.new_zeros(2, self.sequences, heads, self.cache.room, new.shape[-1])
        layer[:, self.owner, :, self.place] = new
        self.cache.layers.append(layer)
        return super().mix(qkv, heads, None, causal, dropout, apart)


@dataclass(frozen=True, kw_only=True)
class Growing(Layout):
    """One more token for each text, behind what the cache holds of it; `longest` is the length it has then."""

    cache: Cache
    same: bool  # all texts are of one length

    def mix(
        self, qkv: Tensor, heads: int, turns: Tensor | None = None, causal: bool = False, dropout: float = 0.0,
        apart: Apart | None = None,
    ) -> Tensor:  # fmt: skip
        if turns is not None:
            qkv = turned(qkv, turns, self.place, heads)
        qkv, layer = qkv.view(qkv.shape[0], 3, heads, 1, -1), next(self.cache)
        if self.same:
            layer[:, :, :, self.longest - 1] = qkv[:, 1:, :, 0].transpose(0, 1)
        else:
            layer[:, self.owner, :, self.place] = qkv[:, 1:, :, 0]
        keys, values = layer[:, :, :, : self.longest].unbind()
        seen = self.sight if apart is None else self._leaning(apart).to(qkv.dtype)
        return F.scaled_dot_product_attention(qkv[:, 0], keys, values, seen).flatten(1)

    def _leaning(self, apart: Apart) -> Tensor:
        """(rows, heads, 1, longest): what distances add to the scores; nothing is left where a text is over."""
        added = apart(torch.arange(self.longest, device=self.place.device) - self.place[:, None]).transpose(0, 1)[:, :, None]
        return added if self.sight is None else added.masked_fill(~self.sight, float("-inf"))

    @cached_property
    def sight(self) -> Tensor | None:
        """(rows, 1, 1, longest) bool: what a text has so far; None if all have as much."""
        if self.same:
            return None
        return (torch.arange(self.longest, device=self.place.device) <= self.place[:, None])[:, None, None]


@dataclass(frozen=True)
class Reached:
    """How far the texts have been read."""

    cache: Cache
    lengths: list[int]
    place: Tensor  # (rows,): where the next token stands


@dataclass(frozen=True)
class Continuing:
    """A causal model as a stepper.

    `joint` is UniLM's way (Dong et al. 2019): a prompt sees all of itself, and what is written is segment B behind it.
    """

    model: Model
    tokens: int  # to be written at most, for which room is made at once
    known: int | None = None  # words of the table that there are; without it, all
    joint: bool = False

    def begin(self, prompts: Sequence[Ints]) -> tuple[Reached, Tensor]:
        lengths = [len(prompt) for prompt in prompts]
        cache = Cache(max(lengths) + self.tokens)
        layout = Filling.around(Layout.of(lengths, lengths if self.joint else None).to(self._device), cache)
        tokens = torch.cat([torch.as_tensor(prompt) for prompt in prompts]).to(self._device)
        rows = self.model(Inputs(tokens, layout, wanted=layout.lasts))
        place = torch.tensor(lengths, device=self._device)
        return Reached(cache, lengths, place), self.model.scores(HEAD, rows)[:, : self.known]

    def step(self, state: Reached, tokens: Tensor) -> tuple[Reached, Tensor]:
        state.cache.turn, count = 0, len(state.lengths)
        lengths, longest = [length + 1 for length in state.lengths], max(state.lengths) + 1
        rows = torch.arange(count, device=tokens.device)
        layout = Growing(torch.ones(count), rows, rows, state.place, longest, cache=state.cache, same=min(lengths) == longest)
        hidden = self.model(Inputs(tokens, layout, torch.ones_like(tokens) if self.joint else None))
        return Reached(state.cache, lengths, state.place + 1), self.model.scores(HEAD, hidden)[:, : self.known]

    def reorder(self, state: Reached, rows: Tensor) -> Reached:
        kept = rows.tolist()
        if kept == list(range(len(state.lengths))):
            return state
        return Reached(state.cache.chosen(rows), [state.lengths[row] for row in kept], state.place.index_select(0, rows))

    @property
    def _device(self) -> torch.device:
        return self.model.encoder.tokens.weight.device


@dataclass(frozen=True)
class Rereading:
    """The same by reading every text again for each token: for causal models that keep no keys and values."""

    model: Model
    known: int | None = None

    def begin(self, prompts: Sequence[Ints]) -> tuple[list[Tensor], Tensor]:
        device = next(self.model.parameters()).device
        return self._read([torch.as_tensor(prompt).to(device) for prompt in prompts])

    def step(self, state: list[Tensor], tokens: Tensor) -> tuple[list[Tensor], Tensor]:
        return self._read([torch.cat([text, token[None]]) for text, token in zip(state, tokens, strict=True)])

    def reorder(self, state: list[Tensor], rows: Tensor) -> list[Tensor]:
        return [state[row] for row in rows.tolist()]

    def _read(self, texts: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        layout = Layout.of([len(text) for text in texts]).to(texts[0].device)
        rows = self.model(Inputs(torch.cat(texts), layout, wanted=layout.lasts))
        return texts, self.model.scores(HEAD, rows)[:, : self.known]


def steps(model: Model) -> bool:
    """It can: every layer remembers, and no token needs to be told its position."""
    encoder = model.config.encoder
    alone = encoder.front is None or isinstance(encoder.front, ByRarity)
    mixers = model.encoder.stack.mixers
    return encoder.causal and alone and encoder.table is False and bool(mixers) and all(one.remembers for one in mixers)


@dataclass(frozen=True)
class Remembering:
    """A causal model of mixer=recurrent or adaptive as a stepper: as if it read everything again, all of which it keeps."""

    model: Model
    known: int | None = None  # words of the table that there are; without it, all

    def begin(self, prompts: Sequence[Ints]) -> tuple[Memory, Tensor]:
        device = next(self.model.parameters()).device
        tokens = torch.cat([torch.as_tensor(prompt) for prompt in prompts]).to(device)
        layout = Layout.of([len(prompt) for prompt in prompts]).to(device)
        return self._read(tokens, layout, Memory.empty(len(prompts), device, whole=True))

    def step(self, state: Memory, tokens: Tensor) -> tuple[Memory, Tensor]:
        return self._read(tokens, Layout.of([1] * len(tokens)).to(tokens.device), state)

    def reorder(self, state: Memory, rows: Tensor) -> Memory:
        layers = tuple(one.index_select(0, rows) for one in state.layers)
        return Memory(state.seen.index_select(0, rows), layers, whole=True)

    def _read(self, tokens: Tensor, layout: Layout, memory: Memory) -> tuple[Memory, Tensor]:
        rows = self.model(Inputs(tokens, layout, wanted=layout.lasts, memory=memory))
        return memory.after(layout), self.model.scores(HEAD, rows)[:, : self.known]
