"""small_linear equals F.linear for any sizes, and is used for large weights only."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from bertsmith.model import linear


@given(st.integers(0, 20), st.integers(1, 90), st.integers(1, 40), st.booleans(), st.booleans())
def test_small_linear_matches_torch(rows, out_features, in_features, has_bias, transposed):
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(linear, "MIN_WEIGHT_NUMEL", 1)
        generator = torch.Generator().manual_seed(rows * 1000 + out_features)
        weight = torch.randn(out_features, in_features, generator=generator, dtype=torch.float64)
        weight = weight.T.contiguous().T if transposed else weight
        x, bias = (
            torch.randn(rows, in_features, generator=generator).double(),
            torch.randn(out_features, generator=generator).double() if has_bias else None,
        )
        actual = linear.small_linear(x, weight, bias)
        assert actual.shape == (rows, out_features)
        assert_close(actual, F.linear(x, weight, bias), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 9, 17])
def test_small_linear_layer_grads_match_torch(rows):
    torch.manual_seed(0)
    reference, chunked = nn.Linear(256, 512), linear.Linear(256, 512)
    chunked.load_state_dict(reference.state_dict())
    linear.use_small_linear(chunked)
    x, grads = torch.randn(rows, 256), []
    for layer in (reference, chunked):
        layer(x).square().sum().backward()
        grads.append(layer.weight.grad)
    assert torch.equal(*grads)
    with torch.no_grad():
        assert_close(chunked(x), reference(x), atol=1e-5, rtol=1e-5)
        assert_close(chunked(x.view(rows, 1, 256)), reference(x.view(rows, 1, 256)), atol=1e-5, rtol=1e-5)


def test_small_linear_chunks_large_weights_only(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "baddbmm", lambda *args, baddbmm=torch.baddbmm: calls.append(args) or baddbmm(*args))
    with torch.no_grad():
        for out_features in (8, 1024):
            linear.small_linear(torch.randn(1, 256), torch.randn(out_features, 256), torch.randn(out_features))
    assert [args[1].shape for args in calls] == [(4, 256, 256)]
