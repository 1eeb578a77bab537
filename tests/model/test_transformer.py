"""A stack of blocks against the formulas of the textbook, whatever is kept, recomputed, shared or asked for."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig

LENGTHS, WIDTH, INNER, LAYERS = (5, 3, 40, 9), 16, 24, 3
PLAIN = {"layers": LAYERS, "width": WIDTH, "mixer": {"heads": 2}, "feedforward": {"inner": INNER}, "positions": 64,
         "dropout": 0.0, "eps": 1e-6, "deviation": 0.3}  # fmt: skip
MODERN = {**PLAIN, "norm": "before", "norm_bias": False, "table": False, "mixer": {"heads": 2, "rotary": 50.0, "bias": False},
          "feedforward": {"inner": INNER, "gated": True, "bias": False}}  # fmt: skip
KINDS = {
    "after": PLAIN, "before": {**PLAIN, "norm": "before"}, "modern": MODERN,
    "shared": {**MODERN, "groups": 2}, "modern after": {**MODERN, "norm": "after"},
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS)


def model(kind, **more):
    made = build_model(ModelConfig(encoder=from_dict(EncoderConfig, {**KINDS[kind], **more}), vocabulary=50), 0).train()
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.ndim == 1:  # gains of 1 and shifts of 0 would hide a norm left out, or in the wrong place
                weight.copy_(torch.randn(weight.shape, generator=dice) * 0.3 + float("norm" in name and "weight" in name))
    return made


def inputs(**more):
    tokens = torch.randint(50, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    return Inputs(tokens, Layout.from_lengths(LENGTHS), **more)


def normed(norm, x):
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-6)


def fed(block, x):
    """W2 gelu(W1 x), or W2 (gelu(W1 x) * W3 x) where it is gated."""
    up, down, inner = block.feedforward.up, block.feedforward.down, x @ block.feedforward.up.weight.T
    inner = inner if up.bias is None else inner + up.bias
    gate, value = (inner[:, :INNER], inner[:, INNER:]) if inner.shape[1] == 2 * INNER else (inner, 1.0)
    out = (0.5 * gate * (1 + torch.erf(gate / 2**0.5)) * value) @ down.weight.T
    return out if down.bias is None else out + down.bias


def textbook(made, given):
    """Every hidden state from the embeddings on, and what is returned."""
    encoder, layout = made.encoder, given.layout
    x = encoder.tokens.weight[given.tokens] + encoder.segments.weight[0]
    x = normed(encoder.norm, x if encoder.positions is None else x + encoder.positions.weight[layout.place])
    states = [x]
    for turn in encoder.stack.turns:
        block = encoder.stack.blocks[turn]
        if encoder.config.norm == "before":
            x = x + block.mixer(normed(block.mixer_norm, x), layout)
            x = x + fed(block, normed(block.feedforward_norm, x))
        else:
            x = normed(block.mixer_norm, x + block.mixer(x, layout))
            x = normed(block.feedforward_norm, x + fed(block, x))
        states.append(x)
    return states, normed(encoder.stack.norm, x) if encoder.config.norm == "before" else x


@every_kind
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("keeping", [False, True])
def test_states_and_slopes_are_those_of_the_textbook(kind, recompute, keeping):
    made, given, kept = model(kind), inputs(), []
    made.encoder.stack.gradient_checkpointing = recompute
    states, wanted = textbook(made, given)
    out = made(given, kept) if keeping else made(given)
    assert_close(out, wanted, atol=1e-5, rtol=1e-5)
    if keeping:
        assert len(kept) == LAYERS + 1
        for ours, theirs in zip(kept, states, strict=True):
            assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    used = [weight for name, weight in made.named_parameters() if "pooler" not in name]
    for ours, theirs in zip(torch.autograd.grad(out, used, slope), torch.autograd.grad(wanted, used, slope), strict=True):
        assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


@every_kind
def test_judging_is_training_without_dropout(kind):
    made, given = model(kind, dropout=0.2), inputs()
    assert_close(made.eval()(given), textbook(made, given)[1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(made.train()(given), made.eval()(given), atol=1e-2)


@pytest.mark.parametrize("kind", ["after", "before", "modern"])
@pytest.mark.parametrize("recompute", [False, True])
def test_keeping_states_or_recomputing_them_draws_the_same_dropout(kind, recompute):
    made, given, found = model(kind, dropout=0.2), inputs(), []
    for kept, again in ((None, False), ([], recompute), (None, recompute)):
        made.encoder.stack.gradient_checkpointing = again
        torch.manual_seed(7)
        out = made(given, kept)
        found.append((out, *torch.autograd.grad(out.square().sum(), list(made.encoder.stack.parameters()))))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert_close(one, two, atol=1e-4, rtol=1e-4)


@every_kind
@pytest.mark.parametrize("recompute", [False, True])
def test_rows_wanted_are_those_of_the_whole_in_the_order_asked(kind, recompute):
    made, given = model(kind), inputs()
    made.encoder.stack.gradient_checkpointing = recompute
    for rows in ([0], [56, 3, 3, 20], []):
        wanted, kept = torch.tensor(rows, dtype=torch.long), []
        part = made(replace(given, output_indices=wanted))
        assert_close(part, made(given)[wanted])
        assert_close(made(replace(given, output_indices=wanted), kept), part)
        assert [len(state) for state in kept] == [sum(LENGTHS)] * LAYERS + [len(rows)]


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu", "silu"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gate_opens_and_shuts_what_lies_beside_it(activation, bias):
    torch.manual_seed(0)
    part, x = FeedForwardConfig(inner=INNER, activation=activation, gated=True, bias=bias).build(WIDTH), torch.randn(11, WIDTH)
    gate, value = F.linear(x, part.up.weight[:INNER]), F.linear(x, part.up.weight[INNER:])
    if bias:
        gate, value = gate + part.up.bias[:INNER], value + part.up.bias[INNER:]
    known = {"gelu": F.gelu, "gelu-tanh": lambda t: F.gelu(t, approximate="tanh"), "relu": F.relu, "silu": F.silu}
    opened = known[activation](gate)
    assert_close(part(x), F.linear(opened * value, part.down.weight, part.down.bias))


def counted(made):
    return sum(weight.numel() for weight in made.encoder.stack.parameters())


def test_models_without_biases_have_none_in_the_stack():
    made = model("modern")
    assert not [name for name, _ in made.encoder.stack.named_parameters() if "bias" in name]
    assert not [name for name, weight in made.named_parameters() if weight.ndim == 1 and "norm" in name and "bias" in name]
    assert counted(made) == LAYERS * (4 * WIDTH**2 + 3 * INNER * WIDTH + 2 * WIDTH) + WIDTH
    assert counted(model("shared")) == 2 * (4 * WIDTH**2 + 3 * INNER * WIDTH + 2 * WIDTH) + WIDTH
    assert counted(model("modern after")) == counted(made) - WIDTH  # no norm at the end


def test_each_option_takes_or_adds_its_own_weights():
    plain = counted(model("after"))
    assert plain == LAYERS * (4 * WIDTH**2 + 4 * WIDTH + 2 * INNER * WIDTH + INNER + WIDTH + 4 * WIDTH)
    assert plain - counted(model("after", mixer={"heads": 2, "bias": False})) == LAYERS * 4 * WIDTH
    assert plain - counted(model("after", feedforward={"inner": INNER, "bias": False})) == LAYERS * (INNER + WIDTH)
    assert plain - counted(model("after", norm_bias=False)) == LAYERS * 2 * WIDTH
    assert counted(model("after", feedforward={"inner": INNER, "gated": True})) - plain == LAYERS * INNER * (WIDTH + 1)
    assert counted(model("after", mixer={"heads": 2, "rotary": 10.0})) == plain
    assert counted(model("before")) == plain + 2 * WIDTH
    assert model("after", table=False).encoder.positions is None
