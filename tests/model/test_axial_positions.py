"""Positions by rows and columns, and feed-forwards a few tokens at a time."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.config import from_dict, read_recipe
from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.positions import AxialPositionsConfig
from bertsmith.model.sublayers import FeedForwardConfig

SMALL = {"layers": 1, "width": 32, "mixer": {"heads": 4}, "feedforward": {"inner": 40}, "positions": 60}


def model(**more):
    return build_model(ModelConfig(encoder=from_dict(EncoderConfig, {**SMALL, **more}), vocabulary=30), 0).eval()


def test_a_place_is_a_row_beside_a_column():
    table = AxialPositionsConfig(shape=(3, 5), widths=(2, 4)).build(15, 6)
    found = table(torch.arange(15))
    rows, columns = (axis.weight for axis in table.axes)
    for place in range(15):
        assert torch.equal(found[place], torch.cat([rows[place // 5], columns[place % 5]]))


def test_three_axes_and_widths_left_to_the_model():
    table = AxialPositionsConfig(shape=(2, 3, 4)).build(24, 8)
    assert [tuple(axis.weight.shape) for axis in table.axes] == [(2, 2), (3, 3), (4, 3)]
    assert len(table(torch.arange(24)).unique(dim=0)) == 24


def test_a_model_has_few_rows_for_many_places():
    made = model(table={"shape": [8, 8], "widths": [8, 24]})
    assert made.encoder.positions is None
    assert sum(weight.numel() for weight in made.encoder.axial.parameters()) == 8 * 32
    tokens = torch.full((20,), 3)
    first = made(Inputs(tokens, Layout.from_lengths([20])))
    assert not torch.allclose(first[0], first[19], atol=1e-4)
    first.sum().backward()
    assert all(weight.grad.any() for weight in made.encoder.axial.parameters())


def test_a_recipe_says_it_by_dotted_names():
    config = read_recipe(EncoderConfig, overrides=["table.shape=[4, 16]", "positions=64", "width=32"])
    assert config.table == AxialPositionsConfig(shape=(4, 16))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"shape": [4, 4]}, "16 places, fewer than model.positions=60"),
        ({"shape": [8, 8], "widths": [8, 8]}, "not 2 that make 32"),
        ({"shape": [8, 8], "widths": [32]}, "not 2 that make 32"),
    ],
)
def test_tables_that_do_not_fit_are_refused(table, words):
    with pytest.raises(UserError, match=words):
        model(table=table)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tokens", [1, 8, 50])
def test_a_few_tokens_at_a_time_give_the_same(gated, tokens):
    torch.manual_seed(0)
    whole, few = (FeedForwardConfig(inner=40, gated=gated, chunk=chunk).build(32) for chunk in (None, 8))
    few.load_state_dict(whole.state_dict())
    x, target, slopes = torch.randn(tokens, 32), torch.randn(tokens, 32), []
    for part in (whole, few):
        given = x.clone().requires_grad_()
        (part(given) * target).sum().backward()
        slopes.append([given.grad, *(weight.grad for weight in part.parameters())])
    for one, other in zip(*slopes, strict=True):
        assert_close(one, other, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        assert_close(whole(x), few(x), atol=1e-6, rtol=1e-5)


def test_a_few_tokens_at_a_time_keep_nothing_of_the_inner_width():
    def widest(chunk):
        part, shapes = FeedForwardConfig(inner=4000, chunk=chunk).build(32), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(t.shape) or t, lambda t: t):
            part(torch.randn(64, 32, requires_grad=True))
        return max(shape[1] for shape in shapes if len(shape) == 2 and shape[0] in (8, 64))

    assert widest(None) == 4000 and widest(8) == 32
