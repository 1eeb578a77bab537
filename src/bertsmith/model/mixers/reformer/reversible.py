"""Blocks that can be run backwards: what entered one is computed from what left it, so depth costs no memory.

Gomez et al. 2017, as Kitaev et al. 2020 have it: y1 = x1 + Mixer(x2), y2 = x2 + FeedForward(y1). A stack keeps what leaves
it and nothing else; on the way back each part is computed once more, with the same dice.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ....errors import BadInput
from ...packing import Layout
from ...segment_memory import Memory
from ...sublayers import Join, Sum, halved

if TYPE_CHECKING:
    from ...config import EncoderConfig
    from ...transformer import Block


Reversible = bool | Literal["halves"]
Part = Callable[[Tensor], Tensor]
Two = tuple[Tensor, Tensor]


def sided(config: "EncoderConfig") -> "EncoderConfig":
    """What the blocks of a stack are built of: a side of a reversible one may be half as wide as the model."""
    if not config.reversible:
        return config
    if config.norm == "after" or config.residual != "all" or config.feedforward is None:
        wrong = "norm=after" if config.norm == "after" else "no feedforward" if config.feedforward is None else "no residuals"
        raise BadInput(f"a reversible model adds what mixers and feed-forwards say, each to one of two sides; it has {wrong}: "
                       "set model.norm=before, and leave model.residual and model.feedforward as they are")  # fmt: skip
    if config.reversible != "halves":
        return config
    if config.width % 2:
        raise BadInput(f"a width of {config.width} has no halves; set model.reversible=true, or an even model.width")
    return msgspec.structs.replace(config, width=config.width // 2)


class Sides(NamedTuple):
    """The two streams between blocks."""

    one: Tensor
    two: Tensor
    halves: bool

    @classmethod
    def of(cls, x: Tensor, reversible: Reversible) -> "Sides":
        """In float32: what was added in fewer bits could not be taken away again."""
        x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        one, two = x.chunk(2, -1) if reversible == "halves" else (x, x)
        return cls(one, two, reversible == "halves")

    def through(self, way: "There") -> "Sides":
        return Sides(*way.run(self.one, self.two), self.halves)

    def joined(self) -> Tensor:
        """Side by side, or the mean of both."""
        return torch.cat([self.one, self.two], -1) if self.halves else (self.one + self.two) / 2


class Twice(nn.Module):
    """Tables of half the width: what they say enters both sides."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], -1)


@dataclass(frozen=True)
class There:
    """One way through the blocks, and all that it takes to come back."""

    blocks: Sequence["Block"]
    layout: Layout
    memory: Memory | None = None
    first: int = 0  # how many blocks are below these
    dice: list["Dice"] = field(default_factory=list)  # before every part, in order

    def run(self, one: Tensor, two: Tensor) -> Two:
        """What leaves the last block. Where something learns, nothing but that is kept for the way back."""
        used = (weight for block in self.blocks for weight in (*block.parameters(), *block.mixer.borrowed))
        weights = [weight for weight in dict.fromkeys(used) if weight.requires_grad]  # shared blocks stand there several times
        if torch.is_grad_enabled() and (weights or one.requires_grad):
            return _Kept.apply(self, one, two, *weights)
        return self.plain(one, two)

    def plain(self, one: Tensor, two: Tensor) -> Two:
        """The same by torch's own means."""
        for number, block in enumerate(self.blocks):
            self.dice.append(Dice.now(one.device, block.training))
            one = one + self._mixer(number, block)(two)
            self.dice.append(Dice.now(one.device, block.training))
            two = two + self._feedforward(block)(one)
        return one, two

    def back(self, ends: Two, slopes: Two, weights: Sequence[Tensor]) -> tuple[Two, list[Tensor | None]]:
        """Gradients of what entered the first block, and of the weights."""
        (one, two), (slope_1, slope_2), sums = ends, slopes, _Sums(weights)
        for number in reversed(range(len(self.blocks))):
            block = self.blocks[number]
            fed, slope = sums.through(self._feedforward(block), one, slope_2, self.dice[2 * number + 1])
            two, slope_1 = two - fed, slope_1 + slope
            mixed, slope = sums.through(self._mixer(number, block, again=True), two, slope_1, self.dice[2 * number])
            one, slope_2 = one - mixed, slope_2 + slope
        return (slope_1, slope_2), sums.found

    def _mixer(self, number: int, block: "Block", again: bool = False) -> Part:
        past = self.memory.past(self.first + number) if self.memory else None

        def mixed(x: Tensor) -> Tensor:
            read = _normed(block.mixer_norm, x)
            out = block.mixer(read, self.layout) if past is None else block.mixer(read, self.layout, past)
            if self.memory is not None and not again:
                self.memory.keep(read, self.layout, past, block.mixer)
            return _dropped(block.mixer_norm, out)

        return mixed

    def _feedforward(self, block: "Block") -> Part:
        assert block.feedforward is not None and block.feedforward_norm is not None
        fed, norm = block.feedforward, block.feedforward_norm
        return lambda x: _dropped(norm, fed(_normed(norm, x)))


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, way: There, one: Tensor, two: Tensor, *weights: Tensor) -> Two:
        ends = way.plain(one, two)
        ctx.way, ctx.mode = way, _Mode.now(one.device)
        ctx.save_for_backward(*ends, *weights)
        return ends

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        one, two, *weights = ctx.saved_tensors
        with ctx.mode.again():
            entered, found = ctx.way.back((one, two), slopes, weights)
        return None, *entered, *found


@dataclass
class _Sums:
    """Gradients of the weights, block by block: several blocks may use the same."""

    weights: Sequence[Tensor]

    def __post_init__(self) -> None:
        self.found: list[Tensor | None] = [None] * len(self.weights)

    def through(self, part: Part, x: Tensor, slope: Tensor, dice: "Dice") -> Two:
        """What a part said of x, computed again, and the gradient of x; those of the weights are added up."""
        x = x.detach().requires_grad_()
        with torch.enable_grad(), dice.again():
            said = part(x)
        down, *more = torch.autograd.grad(said, [x, *self.weights], slope.to(said.dtype), allow_unused=True)
        for number, each in enumerate(more):
            held = self.found[number]
            if each is not None:
                self.found[number] = each if held is None else held + each
        return said.detach(), torch.zeros_like(x) if down is None else down


@dataclass(frozen=True)
class Dice:
    """Where torch's generators stood: the host's, of which kernels draw their seeds, and the device's."""

    host: Tensor | None
    device: torch.device
    there: Tensor | None

    @classmethod
    def now(cls, device: torch.device, thrown: bool) -> "Dice":
        """`thrown`: a part that is not in training needs none."""
        there = torch.cuda.get_rng_state(device) if thrown and device.type == "cuda" else None
        return cls(torch.get_rng_state() if thrown else None, device, there)

    @contextmanager
    def again(self) -> Iterator[None]:
        """The generators stand there once more; afterwards, where they were."""
        with torch.random.fork_rng([self.device] if self.there is not None else [], enabled=self.host is not None):
            if self.host is not None:
                torch.set_rng_state(self.host)
            if self.there is not None:
                torch.cuda.set_rng_state(self.there, self.device)
            yield


@dataclass(frozen=True)
class _Mode:
    """In which numbers products were made: the way back must make the same."""

    kind: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def now(cls, device: torch.device) -> "_Mode":
        return cls(device.type, torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type))

    def again(self) -> torch.autocast:
        return torch.autocast(self.kind, dtype=self.dtype, enabled=self.enabled)


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(halved(x), None)[0] if isinstance(norm, Join) else halved(x)


def _dropped(norm: Join | Sum, said: Tensor) -> Tensor:
    return F.dropout(said, norm.dropout, norm.training)
