"""Fake quantization: values rounded to the integers that the quantized model will have, with straight-through gradients.

y = (clamp(round(x / step) + zero_point, lowest, highest) - zero_point) * step

The gradient of round is taken as 1 (Bengio et al. 2013). That of x is then 1 inside the range and 0 outside, as in
`torch.fake_quantize_per_tensor_affine`, and that of the step is the one of LSQ (Esser et al. 2020, eq. 3).
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...model.model import Model
from .weights import INT8_MAX, MAX_PAIR, TINY, UINT8_MAX, ActivationRange, Floats

RANGE_SUFFIXES = ("input_range.low", "input_range.high")  # of the learned ranges, by parameter name


def fake_quantize(x: Tensor, step: Tensor, zero_point: Tensor | float, lowest: int, highest: int) -> Tensor:
    """x rounded to multiples of `step` (which is broadcast), `lowest` to `highest` of them from `zero_point`."""
    return ((_round(x / step) + zero_point).clamp(lowest, highest) - zero_point) * step


class InputRange(nn.Module):
    """Fake quantization of the inputs of a linear layer to uint8, with a range that is learned; 0 is exact.

    x: (..., inputs), multiplied by `input_scale` (inputs,) while it is rounded.
    """

    input_scale: Tensor

    def __init__(self, activation: ActivationRange, input_scale: Tensor) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.tensor(activation.low, device=input_scale.device))
        self.high = nn.Parameter(torch.tensor(activation.high, device=input_scale.device))
        self.register_buffer("input_scale", input_scale)

    @property
    def activation(self) -> ActivationRange:
        return ActivationRange(min(0.0, self.low.item()), max(0.0, self.high.item()))

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.low.clamp(max=0), self.high.clamp(min=0)
        step = ((high - low) / UINT8_MAX).clamp(min=float(TINY))
        zero_point = _round(-low / step).clamp(0, UINT8_MAX)
        return fake_quantize(x.float() * self.input_scale, step, zero_point, 0, UINT8_MAX) / self.input_scale


class WeightRounding(nn.Module):
    """Parametrization of a weight (outputs, inputs): as `weights.quantize_linear` stores it."""

    input_scale: Tensor

    def __init__(self, input_scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("input_scale", input_scale)

    def forward(self, weight: Tensor) -> Tensor:
        scaled = weight / self.input_scale
        return fake_quantize(scaled, linear_scale(scaled), 0, -INT8_MAX, INT8_MAX) * self.input_scale


@torch.no_grad()
def linear_scale(weight: Tensor) -> Tensor:
    """(outputs, 1): as `weights.linear_scale`."""
    size = weight.abs()
    pairs = nn.functional.pad(size, (0, size.shape[1] % 2)).unflatten(1, (-1, 2)).sum(-1)
    return torch.maximum(size.amax(1) / INT8_MAX, pairs.amax(1) / MAX_PAIR).clamp(min=float(TINY))[:, None]


class FakeQuantizer:
    """The fake quantization of a model's linear layers, by the names of their weights; it is registered in place."""

    def __init__(self, model: Model, activations: Mapping[str, ActivationRange], input_scales: Mapping[str, Floats]) -> None:
        self.linears: dict[str, nn.Linear] = {}
        self._hooks: list[Any] = []
        modules = dict(model.named_modules())
        for name, activation in activations.items():
            linear = modules.get(name.removesuffix(".weight"))
            if not isinstance(linear, nn.Linear):
                continue
            scale = torch.from_numpy(input_scales[name].copy()).to(linear.weight.device)
            linear.add_module("input_range", InputRange(activation, scale))
            self._hooks.append(linear.register_forward_pre_hook(_round_input))
            parametrize.register_parametrization(linear, "weight", WeightRounding(scale.clone()))
            self.linears[name] = linear

    def remove(self) -> dict[str, ActivationRange]:
        """Takes the fake quantization out of the model, whose weights stay as trained; the learned ranges by weight."""
        for hook in self._hooks:
            hook.remove()
        ranges = dict[str, ActivationRange]()
        for name, linear in self.linears.items():
            ranges[name] = _input_range(linear).activation
            del linear.input_range
            parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)
        return ranges

    def input_scales(self) -> dict[str, Floats]:
        """What the inputs are multiplied by, as the checkpoint of the run has it."""
        return {name: _input_range(linear).input_scale.cpu().numpy() for name, linear in self.linears.items()}


def _round(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def _round_input(linear: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (_input_range(linear)(inputs[0]), *inputs[1:])


def _input_range(linear: nn.Module) -> InputRange:
    return cast(InputRange, linear.input_range)
