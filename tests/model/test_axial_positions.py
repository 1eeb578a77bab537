"""Axial position embeddings, and chunked feed-forward layers (Reformer)."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.positions import AxialPositionsConfig
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.recipes import read_recipe

SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "mixer": {"num_attention_heads": 4},
    "feedforward": {"intermediate_size": 40},
    "max_position_embeddings": 60,
}


def build_small_model(**overrides):
    return build_model(ModelConfig(encoder=from_dict(EncoderConfig, {**SMALL, **overrides}), vocab_size=30), 0).eval()


def test_axial_position_concatenates_row_and_column():
    table = AxialPositionsConfig(shape=(3, 5), widths=(2, 4)).build(15, 6)
    embeddings = table(torch.arange(15))
    rows, columns = (axis.weight for axis in table.axes)
    for position in range(15):
        assert torch.equal(embeddings[position], torch.cat([rows[position // 5], columns[position % 5]]))


def test_axial_positions_three_axes_with_default_widths():
    table = AxialPositionsConfig(shape=(2, 3, 4)).build(24, 8)
    assert [tuple(axis.weight.shape) for axis in table.axes] == [(2, 2), (3, 3), (4, 3)]
    assert len(table(torch.arange(24)).unique(dim=0)) == 24


def test_axial_positions_in_model_have_few_parameters_and_get_grads():
    model = build_small_model(position_embedding_type={"shape": [8, 8], "widths": [8, 24]})
    assert model.encoder.position_embeddings is None
    assert sum(weight.numel() for weight in model.encoder.axial_position_embeddings.parameters()) == 8 * 32
    tokens = torch.full((20,), 3)
    hidden_states = model(Inputs(tokens, Layout.from_lengths([20])))
    assert not torch.allclose(hidden_states[0], hidden_states[19], atol=1e-4)
    hidden_states.sum().backward()
    assert all(weight.grad.any() for weight in model.encoder.axial_position_embeddings.parameters())


def test_axial_positions_from_recipe_overrides():
    config = read_recipe(
        EncoderConfig, overrides=["position_embedding_type.shape=[4, 16]", "max_position_embeddings=64", "hidden_size=32"]
    )
    assert config.position_embedding_type == AxialPositionsConfig(shape=(4, 16))


@pytest.mark.parametrize(
    ("position_embedding_type", "message"),
    [
        ({"shape": [4, 4]}, "16 positions, fewer than model.max_position_embeddings=60"),
        ({"shape": [8, 8], "widths": [8, 8]}, "must be 2 sizes with a sum of 32"),
        ({"shape": [8, 8], "widths": [32]}, "must be 2 sizes with a sum of 32"),
    ],
)
def test_axial_positions_shape_and_widths_must_fit(position_embedding_type, message):
    with pytest.raises(UserError, match=message):
        build_small_model(position_embedding_type=position_embedding_type)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 8, 50])
def test_chunked_feed_forward_matches_unchunked(gated, tokens):
    torch.manual_seed(0)
    unchunked, chunked = (FeedForwardConfig(intermediate_size=40, glu=gated, chunk_size=chunk).build(32) for chunk in (None, 8))
    chunked.load_state_dict(unchunked.state_dict())
    x, target, grads = torch.randn(tokens, 32), torch.randn(tokens, 32), []
    for layer in (unchunked, chunked):
        leaf = x.clone().requires_grad_()
        (layer(leaf) * target).sum().backward()
        grads.append([leaf.grad, *(weight.grad for weight in layer.parameters())])
    for expected, actual in zip(*grads, strict=True):
        assert_close(expected, actual, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert_close(unchunked(x), chunked(x), atol=1e-6, rtol=1e-5)


def test_chunked_feed_forward_saves_no_inner_activations():
    def max_saved_size(chunk):
        layer, shapes = FeedForwardConfig(intermediate_size=4000, chunk_size=chunk).build(32), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(t.shape) or t, lambda t: t):
            layer(torch.randn(64, 32, requires_grad=True))
        return max(shape[1] for shape in shapes if len(shape) == 2 and shape[0] in (8, 64))

    assert max_saved_size(None) == 4000 and max_saved_size(8) == 32
