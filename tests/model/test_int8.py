"""Packed weights: how far rounding may move them, what comes back, and what is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.int8 import SCALE_SUFFIX, dequantize_weights, max_rounding_error, quantize_rows, quantize_weights

HERE = Path("folder")
numbers = st.floats(-(2.0**120), 2.0**120, width=32, allow_subnormal=True)
matrices = arrays("float32", array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=5), elements=numbers)


@given(matrices)
def test_no_weight_moves_by_more_than_half_a_scale_of_its_row(array):
    weight = torch.from_numpy(array)
    whole, scale = quantize_rows(weight)
    back = dequantize_weights({"w": whole, f"w{SCALE_SUFFIX}": scale}, HERE)["w"]
    assert back.shape == weight.shape and back.dtype == torch.float32 and whole.dtype == torch.int8
    steps = scale.double().reshape(-1, *[1] * (weight.ndim - 1))
    assert bool(((weight.double() - back.double()).abs() <= steps * (0.5 + 1e-4)).all())


@given(matrices)
def test_packing_again_what_was_packed_changes_no_number(array):
    whole, scale = quantize_rows(torch.from_numpy(array))
    again, same = quantize_rows(dequantize_weights({"w": whole, f"w{SCALE_SUFFIX}": scale}, HERE)["w"])
    assert torch.equal(again, whole)
    assert_close(same, scale, rtol=1e-6, atol=0)


def test_each_row_has_a_scale_of_its_own():
    weight = torch.tensor([[1.0, -0.25], [1e-6, 2.5e-7], [0.0, 0.0]])
    whole, scale = quantize_rows(weight)
    assert whole.tolist() == [[127, -32], [127, 32], [0, 0]]
    assert_close(scale[:2], torch.tensor([1.0, 1e-6]) / 127)


def test_vectors_and_whole_numbers_stay_as_they_are():
    weights = {"bias": torch.randn(5), "count": torch.arange(6).reshape(2, 3), "w": torch.randn(4, 3)}
    stored = quantize_weights(weights)
    assert set(stored) == {"bias", "count", "w", f"w{SCALE_SUFFIX}"}
    assert torch.equal(stored["bias"], weights["bias"]) and torch.equal(stored["count"], weights["count"])
    back = dequantize_weights(stored, HERE)
    assert set(back) == set(weights) and torch.equal(back["bias"], weights["bias"])


def test_a_weight_that_moved_too_far_is_found():
    weights = {"bias": torch.randn(5), "w": torch.randn(4, 3)}
    stored = quantize_weights(weights)
    assert 0 < max_rounding_error(weights, stored) < 0.5 + 1e-4
    assert max_rounding_error({**weights, "bias": weights["bias"] + 1e-6}, stored) == float("inf")
    stored["w"][2, 1] -= 3 * stored["w"][2, 1].sign()
    assert max_rounding_error(weights, stored) > 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_packed(bad):
    with pytest.raises(UserError, match="tokens holds what is no number"):
        quantize_weights({"tokens": torch.tensor([[1.0, bad]])})


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ({"w": torch.zeros(2, 3, dtype=torch.int8)}, "w is packed, and has no scale"),
        ({f"w{SCALE_SUFFIX}": torch.ones(2)}, "w:scale has no matrix"),
        (
            {"w": torch.zeros(2, 3, dtype=torch.int8), f"w{SCALE_SUFFIX}": torch.ones(3)},
            "scales \\[3\\], not int8 with one for each",
        ),
        ({"w": torch.zeros(2, 3, dtype=torch.int8), f"w{SCALE_SUFFIX}": torch.ones(2, 1)}, "scales \\[2, 1\\]"),
        ({"w": torch.zeros(2, 3), f"w{SCALE_SUFFIX}": torch.ones(2)}, "w is torch.float32 \\[2, 3\\]"),
    ],
)
def test_scales_that_do_not_go_with_their_matrix_are_refused(stored, told):
    with pytest.raises(UserError, match=f"folder does not fit its config.json: .*{told}"):
        dequantize_weights(stored, HERE)
