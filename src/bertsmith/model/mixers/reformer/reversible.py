"""Reversible residual blocks (Gomez et al. 2017; Kitaev et al. 2020): activation memory does not grow with depth.

y1 = x1 + Mixer(x2), y2 = x2 + FeedForward(y1), so the inputs of a block can be computed from its outputs. The stack saves only
its final outputs; the backward pass recomputes each sublayer with the same random numbers.
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
from ...kv_cache import KVCache
from ...packing import Layout
from ...segment_memory import SegmentMemory
from ...sublayers import AddNorm, ResidualAdd, to_compute_dtype
from ..base import MemoryMixer

if TYPE_CHECKING:
    from ...config import EncoderConfig
    from ...transformer import Block


ReversibleMode = bool | Literal["halves"]
Sublayer = Callable[[Tensor], Tensor]
TensorPair = tuple[Tensor, Tensor]


def reversible_block_config(config: "EncoderConfig") -> "EncoderConfig":
    """The config of the stack's blocks; with reversible="halves" a residual stream has half the hidden size."""
    if not config.reversible:
        return config
    if config.norm == "post" or config.residual != "all" or config.feedforward is None:
        reason = "norm=post" if config.norm == "post" else "no feedforward" if config.feedforward is None else "no residuals"
        raise UserError(
            f"reversible layers need model.norm=pre, feed-forward sublayers and all residual connections, but the model has "
            f"{reason}; set model.norm=pre, and leave out model.residual and model.feedforward"
        )
    if config.reversible != "halves":
        return config
    if config.hidden_size % 2:
        raise UserError(
            f"model.reversible=halves needs an even model.hidden_size, not {config.hidden_size}; change it, or set "
            "reversible=true"
        )
    return msgspec.structs.replace(config, hidden_size=config.hidden_size // 2)


class ResidualStreams(NamedTuple):
    """The two residual streams between blocks, (tokens, hidden_size) each, or halves of it."""

    x1: Tensor
    x2: Tensor
    is_split: bool

    @classmethod
    def from_hidden(cls, x: Tensor, mode: ReversibleMode) -> "ResidualStreams":
        """In float32: sums in half precision could not be subtracted exactly enough."""
        x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        x1, x2 = x.chunk(2, -1) if mode == "halves" else (x, x)
        return cls(x1, x2, mode == "halves")

    def apply(self, reversible_pass: "ReversiblePass") -> "ResidualStreams":
        return ResidualStreams(*reversible_pass.forward(self.x1, self.x2), self.is_split)

    def merge(self) -> Tensor:
        """Concatenation of halves, or the mean of both streams."""
        return torch.cat([self.x1, self.x2], -1) if self.is_split else (self.x1 + self.x2) / 2


class Duplicate(nn.Module):
    """Concatenates x with itself: embeddings of half the hidden size enter both streams."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], -1)


@dataclass(frozen=True)
class ReversiblePass:
    """One pass through some layers of a stack, with what its backward pass needs."""

    blocks: Sequence["Block"]  # of all layers of the stack
    layers: range  # those of this pass
    layout: Layout
    state: SegmentMemory | KVCache | None = None
    rng_states: list["RngState"] = field(default_factory=list)  # before every sublayer, in order

    def forward(self, x1: Tensor, x2: Tensor) -> TensorPair:
        """Output of the last block. With gradients, it is all that is saved for the backward pass."""
        # Of all blocks, since a layer may use parameters that are tied to another's; shared blocks occur several times.
        parameters = dict.fromkeys(weight for block in self.blocks for weight in block.parameters())
        weights = [weight for weight in parameters if weight.requires_grad]
        if torch.is_grad_enabled() and (weights or x1.requires_grad):
            return _ReversibleFunction.apply(self, x1, x2, *weights)
        return self.forward_autograd(x1, x2)

    def forward_autograd(self, x1: Tensor, x2: Tensor) -> TensorPair:
        """The same with ordinary autograd."""
        for layer in self.layers:
            block = self.blocks[layer]
            self.rng_states.append(RngState.capture(x1.device, block.training))
            x1 = x1 + self._mixer_sublayer(layer)(x2)
            self.rng_states.append(RngState.capture(x1.device, block.training))
            x2 = x2 + self._feedforward_sublayer(block)(x1)
        return x1, x2

    def backward(
        self, outputs: TensorPair, grad_outputs: TensorPair, weights: Sequence[Tensor]
    ) -> tuple[TensorPair, list[Tensor | None]]:
        """Gradients of the inputs of the first block and of the weights."""
        (x1, x2), (grad_1, grad_2), accumulator = outputs, grad_outputs, _GradAccumulator(weights)
        for i, layer in reversed(list(enumerate(self.layers))):
            block = self.blocks[layer]
            feedforward_out, grad_input = accumulator.recompute_backward(
                self._feedforward_sublayer(block), x1, grad_2, self.rng_states[2 * i + 1]
            )
            x2, grad_1 = x2 - feedforward_out, grad_1 + grad_input
            mixer_out, grad_input = accumulator.recompute_backward(
                self._mixer_sublayer(layer, is_recompute=True), x2, grad_1, self.rng_states[2 * i]
            )
            x1, grad_2 = x1 - mixer_out, grad_2 + grad_input
        return (grad_1, grad_2), accumulator.grads

    def _mixer_sublayer(self, layer: int, is_recompute: bool = False) -> Sublayer:
        block, layer_state = self.blocks[layer], self.state.get_layer(layer) if self.state else None

        def sublayer(x: Tensor) -> Tensor:
            normed = _apply_norm(block.mixer_norm, x)
            out = block.mixer(normed, self.layout, layer_state)
            if isinstance(self.state, SegmentMemory) and not is_recompute:
                mixer = block.mixer if isinstance(block.mixer, MemoryMixer) else None
                self.state.set_next_layer(layer, normed, self.layout, mixer)
            assert isinstance(block.mixer_norm, AddNorm | ResidualAdd)
            return _apply_dropout(block.mixer_norm, out)

        return sublayer

    def _feedforward_sublayer(self, block: "Block") -> Sublayer:
        feedforward, norm = block.feedforward, block.feedforward_norm
        assert feedforward is not None and isinstance(norm, AddNorm | ResidualAdd)
        return lambda x: _apply_dropout(norm, feedforward(_apply_norm(norm, x)))


class _ReversibleFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reversible_pass: ReversiblePass, x1: Tensor, x2: Tensor, *weights: Tensor) -> TensorPair:
        outputs = reversible_pass.forward_autograd(x1, x2)
        ctx.reversible_pass, ctx.mode = reversible_pass, _AutocastState.capture(x1.device)
        ctx.save_for_backward(*outputs, *weights)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x1, x2, *weights = ctx.saved_tensors
        with ctx.mode.restore():
            grad_inputs, grad_weights = ctx.reversible_pass.backward((x1, x2), grad_outputs, weights)
        return None, *grad_inputs, *grad_weights


@dataclass
class _GradAccumulator:
    """Sums the gradients of the weights over blocks, which may share weights."""

    weights: Sequence[Tensor]

    def __post_init__(self) -> None:
        self.grads: list[Tensor | None] = [None] * len(self.weights)

    def recompute_backward(self, sublayer: Sublayer, x: Tensor, grad_out: Tensor, rng_state: "RngState") -> TensorPair:
        """Recomputes sublayer(x); returns it and the gradient of x, and adds up the gradients of the weights."""
        x = x.detach().requires_grad_()
        with torch.enable_grad(), rng_state.restore():
            out = sublayer(x)
        grad_input, *weight_grads = torch.autograd.grad(out, [x, *self.weights], grad_out.to(out.dtype), allow_unused=True)
        for i, grad in enumerate(weight_grads):
            total = self.grads[i]
            if grad is not None:
                self.grads[i] = grad if total is None else total + grad
        return out.detach(), torch.zeros_like(x) if grad_input is None else grad_input


@dataclass(frozen=True)
class RngState:
    """States of torch's generators: the CPU's, from which our kernels draw their seeds, and the GPU's."""

    cpu_state: Tensor | None
    device: torch.device
    cuda_state: Tensor | None

    @classmethod
    def capture(cls, device: torch.device, is_training: bool) -> "RngState":
        """Nothing is captured in evaluation, which draws no random numbers."""
        cuda_state = torch.cuda.get_rng_state(device) if is_training and device.type == "cuda" else None
        return cls(torch.get_rng_state() if is_training else None, device, cuda_state)

    @contextmanager
    def restore(self) -> Iterator[None]:
        """Sets the generators to these states within the context, and back afterwards."""
        with torch.random.fork_rng([self.device] if self.cuda_state is not None else [], enabled=self.cpu_state is not None):
            if self.cpu_state is not None:
                torch.set_rng_state(self.cpu_state)
            if self.cuda_state is not None:
                torch.cuda.set_rng_state(self.cuda_state, self.device)
            yield


@dataclass(frozen=True)
class _AutocastState:
    """The autocast mode of the forward pass, for recomputation in the backward pass."""

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
