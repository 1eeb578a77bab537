"""LSTM mixers against the equations, one token at a time, and against torch's own layers."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Lstm
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout

LENGTHS, WIDTH = (4, 9, 1, 6), 6


def made(**more):
    torch.manual_seed(3)
    return (
        Lstm(**more).build(WIDTH).double(),
        torch.randn(sum(LENGTHS), WIDTH, dtype=torch.double),
        Layout.from_lengths(LENGTHS),
    )


def by_the_equations(cells, x, clip):
    """Hochreiter and Schmidhuber 1997 with forget gates and a projection, over one sequence."""
    said, memory, outs = x.new_zeros(cells.proj_size or cells.hidden_size), x.new_zeros(cells.hidden_size), []
    for token in x:
        sums = cells.weight_ih_l0 @ token + cells.bias_ih_l0 + cells.weight_hh_l0 @ said + cells.bias_hh_l0
        enter, keep, new, show = sums.view(4, -1)
        memory = torch.sigmoid(enter) * torch.tanh(new) + torch.sigmoid(keep) * memory
        memory = memory.clamp(-clip, clip)
        said = torch.sigmoid(show) * torch.tanh(memory)
        if cells.proj_size:
            said = (cells.weight_hr_l0 @ said).clamp(-clip, clip)
        outs.append(said)
    return torch.stack(outs)


@pytest.mark.parametrize("directions", ["forward", "both", "apart"])
@pytest.mark.parametrize("hidden", [None, 11])
@pytest.mark.parametrize("clip", [None, 0.2, 1e6])
def test_every_direction_is_the_equations_of_its_own_channels(directions, hidden, clip):
    mixer, x, layout = made(directions=directions, hidden=hidden, clip=clip)
    wanted = []
    for part in x.split(LENGTHS):
        halves = part.chunk(2, -1) if directions == "apart" else (part, part)
        outs = [by_the_equations(mixer.ways[0], halves[0], clip or torch.inf)]
        if directions != "forward":
            outs.append(by_the_equations(mixer.ways[1], halves[1].flip(0), clip or torch.inf).flip(0))
        wanted.append(torch.cat(outs, -1))
    assert_close(mixer(x, layout), torch.cat(wanted))


def test_a_clip_that_never_cuts_is_torchs_own_layer_in_states_and_slopes():
    plain, x, layout = made(directions="both", hidden=11)
    cut, _, _ = made(directions="both", hidden=11, clip=1e6)
    found = []
    for mixer in (plain, cut):
        out, ends = mixer.forward_with_state(x, layout)
        found.append([out, *ends[0], *ends[1], *torch.autograd.grad(out.square().sum(), list(mixer.parameters()))])
    for one, two in zip(*found, strict=True):
        assert_close(one, two)
    for part, at in zip(x.split(LENGTHS), layout.cu_seqlens.tolist(), strict=False):
        own = torch.cat([plain.ways[0](part)[0], plain.ways[1](part.flip(0))[0].flip(0)], -1)
        assert_close(found[0][0][at : at + len(part)], own)


@pytest.mark.parametrize("more", [{}, {"hidden": 11}, {"cell": "gru"}], ids=str)
def test_steps_one_by_one_are_torchs_kernel_for_all_of_them(more):
    mixer, x, layout = made(directions="both", **more)
    begun = mixer.forward_with_state(x.flip(0), layout)[1]  # some state to begin with
    stepped, ends = mixer.forward_with_state(x, layout, begun)
    with torch.no_grad():
        whole, others = mixer.forward_with_state(x, layout, begun)
    assert_close(stepped, whole)
    for one, two in zip(ends, others, strict=True):
        assert_close(one, two)


def test_directions_that_are_apart_never_meet():
    mixer, x, layout = made(directions="apart")
    other = x.clone()
    other[5:, WIDTH // 2 :] += 1.0  # what reads backward hears it
    before, after = mixer(x, layout), mixer(other, layout)
    assert torch.equal(before[:, : WIDTH // 2], after[:, : WIDTH // 2]) and not torch.equal(before, after)
    last = x.clone()
    last[3] += 1.0  # the last token of the first sequence
    changed = (mixer(last, layout) != before).any(0)
    rows = (mixer(last, layout) != before)[:3]
    assert changed.all() and not rows[:, : WIDTH // 2].any() and rows[:, WIDTH // 2 :].all()


@pytest.mark.parametrize("clip", [None, 0.3])
def test_a_memory_that_is_handed_on_is_one_long_sequence(clip):
    mixer, _, _ = made(directions="forward", clip=clip)
    torch.manual_seed(4)
    first, second = torch.randn(7, WIDTH, dtype=torch.double), torch.randn(5, WIDTH, dtype=torch.double)
    one, state = mixer.forward_with_state(first, Layout.from_lengths([4, 3]))
    two, _ = mixer.forward_with_state(second, Layout.from_lengths([2, 3]), state)
    whole = mixer(torch.cat([first[:4], second[:2], first[4:], second[2:]]), Layout.from_lengths([6, 6]))
    assert_close(torch.cat([one[:4], two[:2], one[4:], two[2:]]), whole)


def test_a_gru_is_torchs_own_on_each_sequence():
    mixer, x, layout = made(cell="gru", directions="forward")
    assert_close(mixer(x, layout), torch.cat([mixer.ways[0](part)[0] for part in x.split(LENGTHS)]))


@pytest.mark.parametrize(
    ("wrong", "word"), [({"hidden": 2}, "raise model.mixer.hidden"), ({"cell": "gru", "clip": 3.0}, "cell=lstm")]
)
def test_what_no_cell_can_be_is_refused(wrong, word):
    with pytest.raises(UserError, match=word):
        Lstm(**wrong).build(8)
    with pytest.raises(UserError, match="not even"):
        Lstm().build(7)


def test_such_a_model_says_that_it_does_not_compile():
    config = EncoderConfig(layers=1, width=8, mixer=Lstm(), feedforward=None)
    with pytest.raises(UserError, match=r"leave out train\.compile"):
        build_model(ModelConfig(encoder=config, vocabulary=5), 0).compile_parts()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_where_others_take_half_the_digits_it_keeps_its_own_and_answers_in_theirs(device, cell):
    torch.manual_seed(3)
    mixer, layout = Lstm(cell=cell).build(WIDTH).to(device), Layout.from_lengths(LENGTHS).to(device)
    x = torch.randn(sum(LENGTHS), WIDTH, device=device).bfloat16().requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        got = mixer(x, layout)
    assert got.dtype == torch.bfloat16
    assert_close(got, mixer(x.float(), layout).bfloat16())
    got.float().sum().backward()
    assert x.grad is not None and all(
        weight.grad is not None and weight.grad.dtype == torch.float32 for weight in mixer.parameters()
    )
