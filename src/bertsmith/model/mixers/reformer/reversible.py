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

from ....errors import UserError
from ...packing import Layout
from ...segment_memory import SegmentMemory
from ...sublayers import AddNorm, ResidualAdd, to_compute_dtype

if TYPE_CHECKING:
    from ...config import EncoderConfig
    from ...transformer import Block


ReversibleMode = bool | Literal["halves"]
Sublayer = Callable[[Tensor], Tensor]
TensorPair = tuple[Tensor, Tensor]


def reversible_block_config(config: "EncoderConfig") -> "EncoderConfig":
    """What the blocks of a stack are built of: a side of a reversible one may be half as wide as the model."""
    if not config.reversible:
        return config
    if config.norm == "after" or config.residual != "all" or config.feedforward is None:
        wrong = "norm=after" if config.norm == "after" else "no feedforward" if config.feedforward is None else "no residuals"
        raise UserError(f"a reversible model adds what mixers and feed-forwards say, each to one of two sides; it has {wrong}: "
                       "set model.norm=before, and leave model.residual and model.feedforward as they are")  # fmt: skip
    if config.reversible != "halves":
        return config
    if config.width % 2:
        raise UserError(f"a width of {config.width} has no halves; set model.reversible=true, or an even model.width")
    return msgspec.structs.replace(config, width=config.width // 2)


class ResidualStreams(NamedTuple):
    """The two streams between blocks."""

    x1: Tensor
    x2: Tensor
    is_split: bool

    @classmethod
    def from_hidden(cls, x: Tensor, mode: ReversibleMode) -> "ResidualStreams":
        """In float32: what was added in fewer bits could not be taken away again."""
        x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        one, two = x.chunk(2, -1) if mode == "halves" else (x, x)
        return cls(one, two, mode == "halves")

    def apply(self, reversible_pass: "ReversiblePass") -> "ResidualStreams":
        return ResidualStreams(*reversible_pass.forward(self.x1, self.x2), self.is_split)

    def merge(self) -> Tensor:
        """Side by side, or the mean of both."""
        return torch.cat([self.x1, self.x2], -1) if self.is_split else (self.x1 + self.x2) / 2


class Duplicate(nn.Module):
    """Tables of half the width: what they say enters both sides."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], -1)


@dataclass(frozen=True)
class ReversiblePass:
    """One way through the blocks, and all that it takes to come back."""

    blocks: Sequence["Block"]
    layout: Layout
    memory: SegmentMemory | None = None
    first_layer: int = 0  # how many blocks are below these
    rng_states: list["RngState"] = field(default_factory=list)  # before every part, in order

    def forward(self, x1: Tensor, x2: Tensor) -> TensorPair:
        """What leaves the last block. Where something learns, nothing but that is kept for the way back."""
        used = (weight for block in self.blocks for weight in (*block.parameters(), *block.mixer.tied_parameters))
        weights = [weight for weight in dict.fromkeys(used) if weight.requires_grad]  # shared blocks stand there several times
        if torch.is_grad_enabled() and (weights or x1.requires_grad):
            return _ReversibleFunction.apply(self, x1, x2, *weights)
        return self.forward_autograd(x1, x2)

    def forward_autograd(self, x1: Tensor, x2: Tensor) -> TensorPair:
        """The same by torch's own means."""
        for number, block in enumerate(self.blocks):
            self.rng_states.append(RngState.capture(x1.device, block.training))
            x1 = x1 + self._mixer_sublayer(number, block)(x2)
            self.rng_states.append(RngState.capture(x1.device, block.training))
            x2 = x2 + self._feedforward_sublayer(block)(x1)
        return x1, x2

    def backward(
        self, outputs: TensorPair, grad_outputs: TensorPair, weights: Sequence[Tensor]
    ) -> tuple[TensorPair, list[Tensor | None]]:
        """Gradients of what entered the first block, and of the weights."""
        (one, two), (slope_1, slope_2), sums = outputs, grad_outputs, _GradAccumulator(weights)
        for number in reversed(range(len(self.blocks))):
            block = self.blocks[number]
            fed, slope = sums.recompute_backward(
                self._feedforward_sublayer(block), one, slope_2, self.rng_states[2 * number + 1]
            )
            two, slope_1 = two - fed, slope_1 + slope
            mixed, slope = sums.recompute_backward(
                self._mixer_sublayer(number, block, is_recompute=True), two, slope_1, self.rng_states[2 * number]
            )
            one, slope_2 = one - mixed, slope_2 + slope
        return (slope_1, slope_2), sums.grads

    def _mixer_sublayer(self, block_idx: int, block: "Block", is_recompute: bool = False) -> Sublayer:
        past = self.memory.get_layer(self.first_layer + block_idx) if self.memory else None

        def mixed(x: Tensor) -> Tensor:
            read = _apply_norm(block.mixer_norm, x)
            out = block.mixer(read, self.layout) if past is None else block.mixer(read, self.layout, past)
            if self.memory is not None and not is_recompute:
                self.memory.append_layer(read, self.layout, past, block.mixer)
            return _apply_dropout(block.mixer_norm, out)

        return mixed

    def _feedforward_sublayer(self, block: "Block") -> Sublayer:
        assert block.feedforward is not None and block.feedforward_norm is not None
        fed, norm = block.feedforward, block.feedforward_norm
        return lambda x: _apply_dropout(norm, fed(_apply_norm(norm, x)))


class _ReversibleFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reversible_pass: ReversiblePass, x1: Tensor, x2: Tensor, *weights: Tensor) -> TensorPair:
        ends = reversible_pass.forward_autograd(x1, x2)
        ctx.reversible_pass, ctx.mode = reversible_pass, _AutocastState.capture(x1.device)
        ctx.save_for_backward(*ends, *weights)
        return ends

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        one, two, *weights = ctx.saved_tensors
        with ctx.mode.restore():
            entered, found = ctx.reversible_pass.backward((one, two), grad_outputs, weights)
        return None, *entered, *found


@dataclass
class _GradAccumulator:
    """Gradients of the weights, block by block: several blocks may use the same."""

    weights: Sequence[Tensor]

    def __post_init__(self) -> None:
        self.grads: list[Tensor | None] = [None] * len(self.weights)

    def recompute_backward(self, sublayer: Sublayer, x: Tensor, grad_out: Tensor, rng_state: "RngState") -> TensorPair:
        """What a part said of x, computed again, and the gradient of x; those of the weights are added up."""
        x = x.detach().requires_grad_()
        with torch.enable_grad(), rng_state.restore():
            said = sublayer(x)
        down, *more = torch.autograd.grad(said, [x, *self.weights], grad_out.to(said.dtype), allow_unused=True)
        for number, each in enumerate(more):
            held = self.grads[number]
            if each is not None:
                self.grads[number] = each if held is None else held + each
        return said.detach(), torch.zeros_like(x) if down is None else down


@dataclass(frozen=True)
class RngState:
    """Where torch's generators stood: the host's, of which kernels draw their seeds, and the device's."""

    cpu_state: Tensor | None
    device: torch.device
    cuda_state: Tensor | None

    @classmethod
    def capture(cls, device: torch.device, is_training: bool) -> "RngState":
        """`thrown`: a part that is not in training needs none."""
        there = torch.cuda.get_rng_state(device) if is_training and device.type == "cuda" else None
        return cls(torch.get_rng_state() if is_training else None, device, there)

    @contextmanager
    def restore(self) -> Iterator[None]:
        """The generators stand there once more; afterwards, where they were."""
        with torch.random.fork_rng([self.device] if self.cuda_state is not None else [], enabled=self.cpu_state is not None):
            if self.cpu_state is not None:
                torch.set_rng_state(self.cpu_state)
            if self.cuda_state is not None:
                torch.cuda.set_rng_state(self.cuda_state, self.device)
            yield


@dataclass(frozen=True)
class _AutocastState:
    """In which numbers products were made: the way back must make the same."""

    device_type: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def capture(cls, device: torch.device) -> "_AutocastState":
        return cls(device.type, torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type))

    def restore(self) -> torch.autocast:
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled)


def _apply_norm(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(to_compute_dtype(x), None)[0] if isinstance(norm, AddNorm) else to_compute_dtype(x)


def _apply_dropout(norm: AddNorm | ResidualAdd, sublayer_out: Tensor) -> Tensor:
    return F.dropout(sublayer_out, norm.dropout, norm.training)
