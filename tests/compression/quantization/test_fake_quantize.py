"""Fake quantization computes what torch's does, with the gradient of LSQ for the step, and what is stored."""

import numpy as np
import pytest
import torch

from bertsmith.compression.quantization.fake_quantize import (
    FakeQuantizer,
    InputRange,
    WeightRounding,
    fake_quantize,
    linear_scale,
)
from bertsmith.compression.quantization.weights import ActivationRange, quantize_linear
from bertsmith.compression.quantization.weights import linear_scale as numpy_scale
from tests.support.quantization import build_model


def test_activations_and_their_gradient_are_those_of_torch():
    x = torch.randn(50, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    other = x.detach().clone().requires_grad_()
    weights = torch.randn(50, 16)
    ours = fake_quantize(x, torch.tensor(0.02), 128.0, 0, 255)
    torchs = torch.fake_quantize_per_tensor_affine(other, 0.02, 128, 0, 255)
    torch.testing.assert_close(ours, torchs, rtol=0, atol=1e-6)
    (ours * weights).sum().backward()
    (torchs * weights).sum().backward()
    assert torch.equal(x.grad == 0, other.grad == 0) and (x.grad == 0).any()  # clipped values have none
    torch.testing.assert_close(x.grad, other.grad)


def test_rows_of_a_weight_are_those_of_torch():
    weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    scale = linear_scale(weight)
    torchs = torch.fake_quantize_per_channel_affine(weight, scale[:, 0], torch.zeros(8, dtype=torch.int32), 0, -127, 127)
    torch.testing.assert_close(fake_quantize(weight, scale, 0, -127, 127), torchs, rtol=0, atol=1e-6)


def test_gradient_of_the_step_is_that_of_lsq():
    x, step = torch.tensor([0.26, -0.9, 40.0]), torch.tensor(0.1, requires_grad=True)
    fake_quantize(x, step, 0.0, -127, 127).sum().backward()
    inside = sum(float(np.rint(v / 0.1) - v / 0.1) for v in (0.26, -0.9))
    assert float(step.grad) == pytest.approx(inside + 127, abs=1e-4)


def test_range_is_learned_and_0_stays_exact():
    torch.manual_seed(0)
    module = InputRange(ActivationRange(-0.1, 0.1), torch.ones(16))
    x, optimizer = torch.randn(200, 16), torch.optim.SGD(module.parameters(), 2e-3)
    errors = []
    for _ in range(60):
        error = (module(x) - x).square().mean()
        errors.append(float(error))
        optimizer.zero_grad()
        (50 * error).backward()
        optimizer.step()
    assert errors[-1] < 0.5 * errors[0]
    assert module(torch.zeros(1, 16)).abs().max() == 0
    assert module.activation.low < -0.2 and module.activation.high > 0.2


def test_weights_are_rounded_as_they_are_stored():
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    input_scale = torch.rand(64, generator=torch.Generator().manual_seed(1)) + 0.5
    scaled = (weight / input_scale).numpy()
    np.testing.assert_allclose(linear_scale(torch.from_numpy(scaled))[:, 0], numpy_scale(scaled), rtol=1e-6)
    values, scale = quantize_linear(scaled)
    stored = values * scale[:, None] * input_scale.numpy()
    difference = np.abs(WeightRounding(input_scale)(weight).numpy() - stored)
    assert (difference > 1e-5).mean() < 0.001  # pairs of 129, of which one is less in the file


def test_model_is_as_before_when_fake_quantization_is_removed():
    model = build_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    name = "encoder.stack.layers.0.feedforward.output.weight"
    quantizer = FakeQuantizer(model, {name: ActivationRange(-1.0, 2.0)}, {name: np.ones(128, np.float32)})
    assert len(model.state_dict()) == len(before) + 4  # two ends of the range, what inputs and weights are scaled by
    assert not torch.equal(model.encoder.stack.layers[0].feedforward.output.weight, before[name])
    assert quantizer.remove() == {name: ActivationRange(-1.0, 2.0)}
    after = model.state_dict()
    assert set(after) == set(before) and all(torch.equal(after[key], before[key]) for key in before)
