"""Rotary positions: a turn is a product of complex numbers, and what two tokens are to each other depends on distance."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.positions import RotaryEmbedding, apply_rope
from bertsmith.model.sublayers import FeedForwardConfig

CPU = torch.device("cpu")


def by_complex_numbers(x, places, period):
    """(tokens, heads, width) in float64: halves are the real and the imaginary part, each pair with a speed of its own."""
    half = x.shape[-1] // 2
    speeds = torch.tensor([1 / period ** (i / half) for i in range(half)], dtype=torch.float64)
    angles = places.double()[:, None, None] * speeds
    product = torch.complex(*x.double().chunk(2, -1)) * torch.complex(angles.cos(), angles.sin())
    return torch.cat([product.real, product.imag], -1)


def drawn(tokens, heads, width, seed=0):
    return torch.randn(tokens, 3 * heads * width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("heads", "width"), [(1, 2), (2, 8), (3, 64)])
@pytest.mark.parametrize("period", [10.0, 10_000.0])
def test_turning_is_a_product_of_complex_numbers_and_leaves_values_alone(heads, width, period):
    layout, qkv = Layout.from_lengths([7, 30, 1]), drawn(38, heads, width)
    out = apply_rope(qkv, RotaryEmbedding(width, period).cos_sin(layout.max_seqlen, CPU), layout.position, heads)
    q, k, v = out.unflatten(-1, (3, heads, width)).unbind(1)
    before = qkv.unflatten(-1, (3, heads, width)).unbind(1)
    for ours, given in zip((q, k), before, strict=False):
        assert_close(ours.double(), by_complex_numbers(given, layout.position, period), atol=1e-6, rtol=1e-6)
    assert torch.equal(v, before[2])
    assert torch.equal(out[layout.first_token], qkv[layout.first_token])  # nobody turns at the first place


def test_far_places_are_turned_as_exactly_as_near_ones():
    """In float32 the angle of place 8000 would be off by ten-thousandths."""
    places, qkv = torch.tensor([8000, 8191]), drawn(2, 1, 16)
    out = apply_rope(qkv, RotaryEmbedding(16, 160_000.0).cos_sin(8192, CPU), places, 1).unflatten(-1, (3, 1, 16))
    wanted = by_complex_numbers(qkv.unflatten(-1, (3, 1, 16))[:, 0], places, 160_000.0)
    assert_close(out[:, 0].double(), wanted, atol=2e-6, rtol=0)


def test_products_depend_on_the_distance_and_on_nothing_else():
    rotary, width = RotaryEmbedding(16, 100.0), 16
    qkv = drawn(1, 1, width).expand(60, -1)  # the same token at every place
    q, k, _ = apply_rope(qkv, rotary.cos_sin(60, CPU), torch.arange(60), 1).unflatten(-1, (3, width)).unbind(1)
    scores = q @ k.T
    for distance in (-40, -3, 0, 1, 25):
        line = scores.diagonal(distance)
        assert_close(line, line[:1].expand_as(line), atol=1e-5, rtol=1e-5)
    means = torch.stack([scores.diagonal(distance).mean() for distance in range(-20, 21)])
    assert len(means.unique()) == 41 and means.std() > 0.1  # every distance has a product of its own


def test_the_table_grows_and_what_it_held_stays():
    rotary = RotaryEmbedding(8, 100.0)
    short = rotary.cos_sin(5, CPU)
    assert len(short) >= 5 and rotary.cos_sin(3, CPU) is short and rotary.cos_sin(len(short), CPU) is short
    long = rotary.cos_sin(len(short) + 1, CPU)
    assert len(long) > len(short) and torch.equal(long[: len(short)], short)
    assert rotary.cos_sin(5, CPU) is long  # it does not shrink again
    assert RotaryEmbedding(8, 100.0).cos_sin(1, CPU).shape == (1, 8)
    assert not rotary.state_dict()


def test_a_table_made_while_answering_serves_learning():
    """What is made in torch's inference mode cannot be kept for the way back, which kernels do."""
    rotary = RotaryEmbedding(8, 100.0)
    with torch.inference_mode():
        assert not rotary.cos_sin(5, CPU).is_inference()


def model(table=False, rotary: float | None = 100.0, heads=2, width=16):
    encoder = EncoderConfig(
        layers=2, width=width, mixer=Attention(heads=heads, rotary=rotary), feedforward=FeedForwardConfig(inner=32), table=table,
        positions=200, deviation=0.3,
    )  # fmt: skip
    return build_model(ModelConfig(encoder=encoder, vocabulary=50), 0).eval()


def test_a_model_reads_long_after_short_as_if_it_had_read_nothing_else():
    tokens = torch.arange(150) % 50
    used = model()
    with torch.inference_mode():
        used(Inputs(tokens[:3], Layout.from_lengths([3])))
    long = Inputs(tokens, Layout.from_lengths([150]))
    assert_close(used(long), model()(long))


def test_turns_tell_order_where_no_table_does():
    forth, back = (Inputs(tokens, Layout.from_lengths([6])) for tokens in (torch.arange(6), torch.arange(6).flip(0)))
    blind, seeing = model(rotary=None), model()
    assert blind.encoder.positions is None and "encoder.positions.weight" not in seeing.state_dict()
    assert_close(blind(forth), blind(back).flip(0), atol=1e-5, rtol=1e-5)
    assert (seeing(forth) - seeing(back).flip(0)).abs().max() > 0.1


@pytest.mark.parametrize(("heads", "width"), [(2, 6), (16, 16)])
def test_heads_of_odd_width_are_refused(heads, width):
    with pytest.raises(UserError, match=rf"heads of {width // heads}.*even"):
        model(heads=heads, width=width)
