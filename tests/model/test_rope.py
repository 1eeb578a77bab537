"""RoPE: rotation as complex multiplication, scores that depend on distance only, and the cos/sin cache."""

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
from tests.support.references import rope_by_complex_multiplication

CPU = torch.device("cpu")


def random_qkv(num_tokens, heads, head_dim, seed=0):
    return torch.randn(num_tokens, 3 * heads * head_dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (2, 8), (3, 64)])
@pytest.mark.parametrize("theta", [10.0, 10_000.0])
def test_rope_is_complex_multiplication_of_queries_and_keys(heads, head_dim, theta):
    layout, qkv = Layout.from_lengths([7, 30, 1]), random_qkv(38, heads, head_dim)
    out = apply_rope(qkv, RotaryEmbedding(head_dim, theta).cos_sin(layout.max_seqlen, CPU), layout.position, heads)
    q, k, v = out.unflatten(-1, (3, heads, head_dim)).unbind(1)
    before = qkv.unflatten(-1, (3, heads, head_dim)).unbind(1)
    for rotated, original in zip((q, k), before, strict=False):
        assert_close(rotated.double(), rope_by_complex_multiplication(original, layout.position, theta), atol=1e-6, rtol=1e-6)
    assert torch.equal(v, before[2])
    assert torch.equal(out[layout.first_token], qkv[layout.first_token])  # position 0 is not rotated


def test_rope_is_exact_at_large_positions():
    """In float32 the angle at position 8000 would be off by 1e-4."""
    positions, qkv = torch.tensor([8000, 8191]), random_qkv(2, 1, 16)
    out = apply_rope(qkv, RotaryEmbedding(16, 160_000.0).cos_sin(8192, CPU), positions, 1).unflatten(-1, (3, 1, 16))
    expected = rope_by_complex_multiplication(qkv.unflatten(-1, (3, 1, 16))[:, 0], positions, 160_000.0)
    assert_close(out[:, 0].double(), expected, atol=2e-6, rtol=0)


def test_rope_scores_depend_on_distance_only():
    rotary, head_dim = RotaryEmbedding(16, 100.0), 16
    qkv = random_qkv(1, 1, head_dim).expand(60, -1)  # the same token at every position
    q, k, _ = apply_rope(qkv, rotary.cos_sin(60, CPU), torch.arange(60), 1).unflatten(-1, (3, head_dim)).unbind(1)
    scores = q @ k.T
    for distance in (-40, -3, 0, 1, 25):
        diagonal = scores.diagonal(distance)
        assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=1e-5)
    means = torch.stack([scores.diagonal(distance).mean() for distance in range(-20, 21)])
    assert len(means.unique()) == 41 and means.std() > 0.1  # every distance has its own score


def test_rope_cache_grows_and_keeps_its_values():
    rotary = RotaryEmbedding(8, 100.0)
    short = rotary.cos_sin(5, CPU)
    assert len(short) >= 5 and rotary.cos_sin(3, CPU) is short and rotary.cos_sin(len(short), CPU) is short
    long = rotary.cos_sin(len(short) + 1, CPU)
    assert len(long) > len(short) and torch.equal(long[: len(short)], short)
    assert rotary.cos_sin(5, CPU) is long  # it does not shrink
    assert RotaryEmbedding(8, 100.0).cos_sin(1, CPU).shape == (1, 8)
    assert not rotary.state_dict()


def test_rope_cache_from_inference_mode_can_be_used_in_training():
    """Tensors created in inference mode cannot be saved for backward, as the kernels do."""
    rotary = RotaryEmbedding(8, 100.0)
    with torch.inference_mode():
        assert not rotary.cos_sin(5, CPU).is_inference()


def build_small_model(rope_theta: float | None = 100.0, heads=2, hidden_size=16):
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=hidden_size,
        mixer=Attention(num_attention_heads=heads, rope_theta=rope_theta),
        feedforward=FeedForwardConfig(intermediate_size=32),
        position_embedding_type="none",
        max_position_embeddings=200,
        initializer_range=0.3,
    )
    return build_model(ModelConfig(encoder=encoder, vocab_size=50), 0).eval()


def test_rope_model_long_text_after_short_text():
    tokens = torch.arange(150) % 50
    used = build_small_model()
    with torch.inference_mode():
        used(Inputs(tokens[:3], Layout.from_lengths([3])))
    long = Inputs(tokens, Layout.from_lengths([150]))
    assert_close(used(long), build_small_model()(long))


def test_rope_gives_order_without_position_embeddings():
    forward, backward = (Inputs(tokens, Layout.from_lengths([6])) for tokens in (torch.arange(6), torch.arange(6).flip(0)))
    without_rope, with_rope = build_small_model(rope_theta=None), build_small_model()
    assert (
        without_rope.encoder.position_embeddings is None and "encoder.position_embeddings.weight" not in with_rope.state_dict()
    )
    assert_close(without_rope(forward), without_rope(backward).flip(0), atol=1e-5, rtol=1e-5)
    assert (with_rope(forward) - with_rope(backward).flip(0)).abs().max() > 0.1


@pytest.mark.parametrize(("heads", "hidden_size"), [(2, 6), (16, 16)])
def test_rope_rejects_odd_head_dim(heads, hidden_size):
    with pytest.raises(UserError, match=rf"even head size, not {hidden_size // heads};"):
        build_small_model(heads=heads, hidden_size=hidden_size)


def test_exported_program_has_the_table_for_any_length():
    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rotary = RotaryEmbedding(8, 100.0)

        def forward(self, x):
            return self.rotary.cos_sin(x.shape[0], x.device)[: x.shape[0]]

    table = Table()
    sizes = ({0: torch.export.Dim("tokens")},)
    exported = torch.export.export(table, (torch.zeros(5),), dynamic_shapes=sizes, strict=False).module()
    for length in (2, 5, 33):
        assert_close(exported(torch.zeros(length)), RotaryEmbedding(8, 100.0).cos_sin(length, torch.device("cpu"))[:length])
