"""Int8 weight storage: rounding error, round trip, and rejected inputs."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.folder import SCALE_SUFFIX
from bertsmith.model.int8 import dequantize_weights, max_rounding_error, quantize_rows, quantize_weights

FOLDER = Path("folder")
finite_floats = st.floats(-(2.0**120), 2.0**120, width=32, allow_subnormal=True)
matrices = arrays("float32", array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=5), elements=finite_floats)


@given(matrices)
def test_int8_rounding_error_is_at_most_half_a_scale(array):
    weight = torch.from_numpy(array)
    quantized, scale = quantize_rows(weight)
    dequantized = dequantize_weights({"w": quantized, f"w{SCALE_SUFFIX}": scale}, FOLDER)["w"]
    assert dequantized.shape == weight.shape and dequantized.dtype == torch.float32 and quantized.dtype == torch.int8
    row_scale = scale.double().reshape(-1, *[1] * (weight.ndim - 1))
    assert bool(((weight.double() - dequantized.double()).abs() <= row_scale * (0.5 + 1e-4)).all())


@given(matrices)
def test_int8_quantizing_again_changes_nothing(array):
    quantized, scale = quantize_rows(torch.from_numpy(array))
    requantized, new_scale = quantize_rows(dequantize_weights({"w": quantized, f"w{SCALE_SUFFIX}": scale}, FOLDER)["w"])
    assert torch.equal(requantized, quantized)
    assert_close(new_scale, scale, rtol=1e-6, atol=0)


def test_int8_scale_per_row():
    weight = torch.tensor([[1.0, -0.25], [1e-6, 2.5e-7], [0.0, 0.0]])
    quantized, scale = quantize_rows(weight)
    assert quantized.tolist() == [[127, -32], [127, 32], [0, 0]]
    assert_close(scale[:2], torch.tensor([1.0, 1e-6]) / 127)


def test_int8_leaves_vectors_and_integers_unchanged():
    weights = {"bias": torch.randn(5), "count": torch.arange(6).reshape(2, 3), "w": torch.randn(4, 3)}
    quantized = quantize_weights(weights)
    assert set(quantized) == {"bias", "count", "w", f"w{SCALE_SUFFIX}"}
    assert torch.equal(quantized["bias"], weights["bias"]) and torch.equal(quantized["count"], weights["count"])
    dequantized = dequantize_weights(quantized, FOLDER)
    assert set(dequantized) == set(weights) and torch.equal(dequantized["bias"], weights["bias"])


def test_int8_max_rounding_error_detects_wrong_weights():
    weights = {"bias": torch.randn(5), "w": torch.randn(4, 3)}
    quantized = quantize_weights(weights)
    assert 0 < max_rounding_error(weights, quantized) < 0.5 + 1e-4
    assert max_rounding_error({**weights, "bias": weights["bias"] + 1e-6}, quantized) == float("inf")
    quantized["w"][2, 1] -= 3 * quantized["w"][2, 1].sign()
    assert max_rounding_error(weights, quantized) > 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_int8_rejects_nan_and_inf(bad):
    with pytest.raises(UserError, match="tokens contains NaN or infinity"):
        quantize_weights({"tokens": torch.tensor([[1.0, bad]])})


@pytest.mark.parametrize(
    ("quantized", "message"),
    [
        ({"w": torch.zeros(2, 3, dtype=torch.int8)}, "w is int8, but has no scale"),
        ({f"w{SCALE_SUFFIX}": torch.ones(2)}, "w:scale has a scale, but no int8 matrix"),
        (
            {"w": torch.zeros(2, 3, dtype=torch.int8), f"w{SCALE_SUFFIX}": torch.ones(3)},
            "scales \\[3\\], not int8 with one scale for each",
        ),
        ({"w": torch.zeros(2, 3, dtype=torch.int8), f"w{SCALE_SUFFIX}": torch.ones(2, 1)}, "scales \\[2, 1\\]"),
        ({"w": torch.zeros(2, 3), f"w{SCALE_SUFFIX}": torch.ones(2)}, "w is torch.float32 \\[2, 3\\]"),
    ],
)
def test_int8_rejects_mismatched_scales(quantized, message):
    with pytest.raises(UserError, match=f"folder does not match its config.json: .*{message}"):
        dequantize_weights(quantized, FOLDER)
