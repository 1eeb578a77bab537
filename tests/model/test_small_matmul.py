"""Products in parts are torch's own, of any sizes, and are left to torch where that is as good."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from bertsmith.model import small_matmul


@given(st.integers(0, 20), st.integers(1, 90), st.integers(1, 40), st.booleans(), st.booleans())
def test_a_product_is_torchs(rows, out, into, biased, columns):
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(small_matmul, "MIN_WEIGHT_NUMEL", 1)
        draw = torch.Generator().manual_seed(rows * 1000 + out)
        weight = torch.randn(out, into, generator=draw, dtype=torch.float64)
        weight = weight.T.contiguous().T if columns else weight
        x, bias = (
            torch.randn(rows, into, generator=draw).double(),
            torch.randn(out, generator=draw).double() if biased else None,
        )
        found = small_matmul.small_linear(x, weight, bias)
        assert found.shape == (rows, out)
        assert_close(found, F.linear(x, weight, bias), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 9, 17])
def test_a_layer_that_multiplies_in_parts_still_learns(rows):
    torch.manual_seed(0)
    plain, parts = nn.Linear(256, 512), nn.Linear(256, 512)
    parts.load_state_dict(plain.state_dict())
    small_matmul.use_small_linear(parts)
    x, slopes = torch.randn(rows, 256), []
    for layer in (plain, parts):
        layer(x).square().sum().backward()
        slopes.append(layer.weight.grad)
    assert torch.equal(*slopes)
    with torch.no_grad():
        assert_close(parts(x), plain(x), atol=1e-5, rtol=1e-5)
        assert_close(parts(x.view(rows, 1, 256)), plain(x.view(rows, 1, 256)), atol=1e-5, rtol=1e-5)


def test_large_matrices_are_parted_and_small_ones_are_not(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "baddbmm", lambda *given, baddbmm=torch.baddbmm: calls.append(given) or baddbmm(*given))
    with torch.no_grad():
        for out in (8, 1024):
            small_matmul.small_linear(torch.randn(1, 256), torch.randn(out, 256), torch.randn(out))
    assert [one[1].shape for one in calls] == [(4, 256, 256)]
