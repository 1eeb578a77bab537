"""Integers and scales: how exact they are, and that their products with uint8 activations fit into 16 bits two at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bertsmith.compression.quantization.weights import (
    MAX_PAIR,
    ChannelRange,
    linear_scale,
    pack_int4,
    quantize_linear,
    quantize_rows,
    quantize_rows_int4,
    quantize_weights,
    smoothing_scale,
)
from bertsmith.errors import UserError
from bertsmith.model import int8
from bertsmith.model.folder import unpack_int4

MATRICES = arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=st.floats(-1e3, 1e3, width=32))


def vpmaddubsw(activations, weights):
    """x86's instruction: sums of two products uint8 * int8 that saturate in 16 bits; (rows, pairs)."""
    products = activations.astype(np.int32) * weights.astype(np.int32)
    return np.clip(products.reshape(len(products), -1, 2).sum(-1), -(2**15), 2**15 - 1)


@settings(deadline=None)
@given(MATRICES)
def test_pairs_of_weights_never_saturate(weight):
    values, scale = quantize_linear(weight)
    size = np.abs(np.pad(values, ((0, 0), (0, values.shape[1] % 2))).astype(int)).reshape(len(values), -1, 2)
    assert size.sum(-1).max() <= MAX_PAIR
    assert np.abs(values * scale[:, None] - weight).max() <= 1.51 * scale.max()


def test_products_are_those_of_a_cpu_without_vnni():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(32, 64)).astype(np.float32)
    weight[:, 4:6] = 3.5  # two large neighbors
    activations = np.full((32, 64), 255, np.uint8)
    full_range, limited = quantize_rows(weight)[0], quantize_linear(weight)[0]
    exact = (activations.astype(np.int64) * limited).sum(1)
    assert (vpmaddubsw(activations, limited).sum(1) == exact).all()
    exact = (activations.astype(np.int64) * full_range).sum(1)
    assert (vpmaddubsw(activations, full_range).sum(1) != exact).any()  # what onnxruntime issue 6004 reports


def test_saturation_free_scales_cost_less_than_seven_bits():
    weight = np.random.default_rng(0).normal(size=(64, 384)).astype(np.float32)
    seven_bits = np.abs(weight).max(1) / 63
    assert (linear_scale(weight) < seven_bits).all() and linear_scale(weight).mean() < 0.72 * seven_bits.mean()


def test_int4_rows_are_packed_and_read_by_both_readers():
    table = np.random.default_rng(0).normal(size=(7, 10)).astype(np.float32)
    table[3] = 0
    values, scale = quantize_rows_int4(table)
    assert values.min() >= -7 and values.max() <= 7
    np.testing.assert_array_equal(unpack_int4(pack_int4(values)), values)
    stored = {"t": torch.from_numpy(pack_int4(values)), "t:scale": torch.from_numpy(scale)}
    loaded = int8.dequantize_weights(stored, Path("folder"))["t"].numpy()
    np.testing.assert_allclose(loaded, values * scale[:, None], rtol=1e-6)
    plain = np.abs(table).max(1) / 7
    naive = np.rint(table / np.maximum(plain, 1e-30)[:, None]) * plain[:, None]
    assert np.square(loaded - table).sum() < np.square(naive - table).sum()


def test_input_scales_are_taken_out_again_when_a_model_is_loaded():
    rng = np.random.default_rng(0)
    weights = {"a": rng.normal(size=(64, 66)).astype(np.float32), "b": rng.normal(size=(64, 66)).astype(np.float32),
               "c": rng.normal(size=(3, 66)).astype(np.float32)}  # fmt: skip
    channels = ChannelRange(-rng.uniform(0.1, 30, 66).astype(np.float32), rng.uniform(0.1, 30, 66).astype(np.float32))
    scale = smoothing_scale(weights["a"], channels)
    assert np.log(scale).mean() == pytest.approx(0, abs=1e-5)
    stored = quantize_weights(weights, {"a": scale}, {}, frozenset("b"))
    assert stored["a"].dtype == np.int8 and stored["b"] is weights["b"] and stored["c"] is weights["c"]
    loaded = int8.dequantize_weights({name: torch.from_numpy(array) for name, array in stored.items()}, Path("folder"))
    bound = 1.01 * stored["a:scale"][:, None] * scale
    assert set(loaded) == set(weights) and (np.abs(loaded["a"].numpy() - weights["a"]) <= bound).all()


def test_weights_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="w contains NaN"):
        quantize_weights({"w": np.full((64, 64), np.nan, np.float32)}, {}, {})
