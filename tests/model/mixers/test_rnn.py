"""LSTM, GRU and plain RNN mixers against their equations, one token at a time, and against torch's layers."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Lstm
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout

LENGTHS, HIDDEN_SIZE = (4, 9, 1, 6), 6


def build_mixer_and_inputs(**options):
    torch.manual_seed(3)
    return (
        Lstm(**options).build(HIDDEN_SIZE).double(),
        torch.randn(sum(LENGTHS), HIDDEN_SIZE, dtype=torch.double),
        Layout.from_lengths(LENGTHS),
    )


def lstm_reference(lstm, x, clip):
    """Hochreiter and Schmidhuber 1997 with forget gates and a projection, over one sequence."""
    h, c, outs = x.new_zeros(lstm.proj_size or lstm.hidden_size), x.new_zeros(lstm.hidden_size), []
    for token in x:
        gates = lstm.weight_ih_l0 @ token + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ h + lstm.bias_hh_l0
        i, f, g, o = gates.view(4, -1)
        c = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * c
        c = c.clamp(-clip, clip)
        h = torch.sigmoid(o) * torch.tanh(c)
        if lstm.proj_size:
            h = (lstm.weight_hr_l0 @ h).clamp(-clip, clip)
        outs.append(h)
    return torch.stack(outs)


@pytest.mark.parametrize("directions", ["forward", "both", "apart"])
@pytest.mark.parametrize("hidden", [None, 11])
@pytest.mark.parametrize("clip", [None, 0.2, 1e6])
def test_lstm_matches_equations_in_every_direction(directions, hidden, clip):
    mixer, x, layout = build_mixer_and_inputs(directions=directions, cell_size=hidden, cell_clip=clip)
    expected = []
    for part in x.split(LENGTHS):
        inputs = part.chunk(2, -1) if directions == "apart" else (part, part)
        outs = [lstm_reference(mixer.directions[0], inputs[0], clip or torch.inf)]
        if directions != "forward":
            outs.append(lstm_reference(mixer.directions[1], inputs[1].flip(0), clip or torch.inf).flip(0))
        expected.append(torch.cat(outs, -1))
    assert_close(mixer(x, layout), torch.cat(expected))


def test_lstm_with_large_clip_matches_torch_lstm_and_grads():
    unclipped, x, layout = build_mixer_and_inputs(directions="both", cell_size=11)
    clipped, _, _ = build_mixer_and_inputs(directions="both", cell_size=11, cell_clip=1e6)
    results = []
    for mixer in (unclipped, clipped):
        out = mixer(x, layout)
        results.append([out, *torch.autograd.grad(out.square().sum(), list(mixer.parameters()))])
    for x1, x2 in zip(*results, strict=True):
        assert_close(x1, x2)
    for part, start in zip(x.split(LENGTHS), layout.cu_seqlens.tolist(), strict=False):
        torch_out = torch.cat([unclipped.directions[0](part)[0], unclipped.directions[1](part.flip(0))[0].flip(0)], -1)
        assert_close(results[0][0][start : start + len(part)], torch_out)


@pytest.mark.parametrize("options", [{}, {"cell_size": 11}, {"cell": "gru"}, {"cell": "rnn"}], ids=str)
def test_rnn_python_loop_matches_torch_kernel(options):
    mixer, x, layout = build_mixer_and_inputs(directions="both", **options)
    loop_out = mixer(x, layout)
    with torch.no_grad():
        kernel_out = mixer(x, layout)
    assert_close(loop_out, kernel_out)


def test_split_lstm_directions_are_independent():
    mixer, x, layout = build_mixer_and_inputs(directions="apart")
    perturbed = x.clone()
    perturbed[5:, HIDDEN_SIZE // 2 :] += 1.0  # read by the backward direction
    before, after = mixer(x, layout), mixer(perturbed, layout)
    assert torch.equal(before[:, : HIDDEN_SIZE // 2], after[:, : HIDDEN_SIZE // 2]) and not torch.equal(before, after)
    last_perturbed = x.clone()
    last_perturbed[3] += 1.0  # the last token of the first sequence
    changed = (mixer(last_perturbed, layout) != before).any(0)
    rows = (mixer(last_perturbed, layout) != before)[:3]
    assert changed.all() and not rows[:, : HIDDEN_SIZE // 2].any() and rows[:, HIDDEN_SIZE // 2 :].all()


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_gru_and_rnn_match_torch_layers_and_grads(cell):
    mixer, x, layout = build_mixer_and_inputs(cell=cell, directions="forward")
    assert type(mixer.directions[0]) is {"gru": torch.nn.GRU, "rnn": torch.nn.RNN}[cell]
    weights, grads = list(mixer.parameters()), []
    for out in (mixer(x, layout), torch.cat([mixer.directions[0](part)[0] for part in x.split(LENGTHS)])):
        grads.append([out, *torch.autograd.grad(out.square().sum(), weights)])
    for ours, theirs in zip(*grads, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("directions", ["forward", "both", "apart"])
def test_plain_rnn_matches_its_equation(directions):
    """Elman 1990: h_t = tanh(W x_t + U h_{t-1} + b)."""
    mixer, x, layout = build_mixer_and_inputs(cell="rnn", directions=directions)
    expected = []
    for part in x.split(LENGTHS):
        inputs, outs = part.chunk(2, -1) if directions == "apart" else (part, part), []
        for direction, rnn in enumerate(mixer.directions):
            h, states = torch.zeros(rnn.hidden_size, dtype=x.dtype), []
            for token in inputs[direction].flip(0) if direction else inputs[direction]:
                h = torch.tanh(rnn.weight_ih_l0 @ token + rnn.bias_ih_l0 + rnn.weight_hh_l0 @ h + rnn.bias_hh_l0)
                states.append(h)
            outs.append(torch.stack(states).flip(0) if direction else torch.stack(states))
        expected.append(torch.cat(outs, -1))
    assert_close(mixer(x, layout), torch.cat(expected))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell_size": 2}, "raise model.mixer.cell_size"),
        ({"cell": "gru", "cell_clip": 3.0}, "cell=lstm"),
        ({"cell": "rnn", "cell_size": 12}, "cell=rnn does not support"),
    ],
)
def test_rnn_refuses_impossible_configs(options, message):
    with pytest.raises(UserError, match=message):
        Lstm(**options).build(8)
    with pytest.raises(UserError, match="must be even"):
        Lstm().build(7)


def test_rnn_refuses_torch_compile():
    config = EncoderConfig(num_hidden_layers=1, hidden_size=8, mixer=Lstm(), feedforward=None)
    with pytest.raises(UserError, match=r"leave out train\.compile"):
        build_model(ModelConfig(encoder=config, vocab_size=5), 0).compile_parts()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_rnn_computes_in_float32_under_autocast(device, cell):
    torch.manual_seed(3)
    mixer, layout = Lstm(cell=cell).build(HIDDEN_SIZE).to(device), Layout.from_lengths(LENGTHS).to(device)
    x = torch.randn(sum(LENGTHS), HIDDEN_SIZE, device=device).bfloat16().requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        out = mixer(x, layout)
    assert out.dtype == torch.bfloat16
    assert_close(out, mixer(x.float(), layout).bfloat16())
    out.float().sum().backward()
    assert x.grad is not None and all(
        weight.grad is not None and weight.grad.dtype == torch.float32 for weight in mixer.parameters()
    )
