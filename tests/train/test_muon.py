"""Muon against torch's own, block by block; what is not a matrix between layers moves as AdamW moves it."""

import copy

import pytest
import torch
from torch import nn

from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives import SentencePairMLM
from bertsmith.train.optim import Muon, build_param_groups, load_optimizer_state, newton_schulz, optimizer_state_by_name

RATE, DECAY, TIMES, STEPS = 2e-3, 0.1, 10.0, 5
SHAPES = [(8, 8), (24, 8), (8, 24), (1, 6), (6, 1), (8, 8), (40, 64)]


class Matrices(nn.Module):
    """Linear layers of several shapes, two of them alike, and a vector."""

    def __init__(self):
        super().__init__()
        dice = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(columns, rows, bias=False) for rows, columns in SHAPES)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.3, generator=dice)


def slopes(step, shapes=SHAPES):
    dice = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=dice) * 10.0 ** (n % 5 - 2) for n, shape in enumerate(shapes)]


def far(ours, theirs):
    """In updates of one matrix."""
    return (ours - theirs).abs().max().item() / (RATE * TIMES)


@pytest.mark.parametrize("decay", [DECAY, 0.0])
@pytest.mark.parametrize("momentum", [0.95, 0.5])
@pytest.mark.parametrize("half", [False, True])
def test_matrices_move_as_torchs_own_muon_moves_them(decay, momentum, half, monkeypatch):
    """To rounding, where torch's is made to compute in float32, as ours does here; in its bfloat16, roughly."""
    if not half:
        monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.float().clone())
    ours, theirs = Matrices(), Matrices()
    mine = Muon(momentum=momentum, times=TIMES).build(build_param_groups(ours, decay), RATE)
    peer = torch.optim.Muon(
        theirs.parameters(), lr=RATE * TIMES, weight_decay=decay, momentum=momentum, nesterov=True, adjust_lr_fn="original"
    )
    begun = [weight.detach().clone() for weight in ours.parameters()]
    for step in range(STEPS):
        for one, other, slope in zip(ours.parameters(), theirs.parameters(), slopes(step), strict=True):
            one.grad, other.grad = slope.clone(), slope.clone()
        mine.step()
        peer.step()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert far(one, other) < (0.2 if half else 1e-4)
            torch.testing.assert_close(mine.state[one]["momentum"], peer.state[other]["momentum_buffer"])
    moved = [(weight - before).abs().mean() for weight, before in zip(ours.parameters(), begun, strict=True)]
    assert min(moved) > RATE  # far more than what they may differ by


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 48, 16), (2, 16, 48), (1, 1, 5)])
def test_singular_values_come_near_one_and_directions_stay(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    out = newton_schulz(x).float()
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    inside = u.mT @ out @ v.mT  # diagonal, if every direction stays
    found = inside.diagonal(dim1=1, dim2=2)
    assert out.shape == x.shape and found.min() > 0.4 and found.max() < 1.3
    assert (inside - torch.diag_embed(found)).abs().max() < 0.05
    assert not newton_schulz(torch.zeros(shape)).any()


def test_a_matrix_of_several_parts_moves_as_the_parts_would_alone():
    """Queries, keys and values lie in one matrix; so do a gate and what it lets through."""
    whole, alone = nn.ModuleList([nn.Linear(8, 24, bias=False)]), nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
    blind = copy.deepcopy(whole)
    whole[0].weight.parts = 3
    with torch.no_grad():
        for layer, part in zip(alone, whole[0].weight.chunk(3), strict=True):
            layer.weight.copy_(part)
    optimizers = [Muon(times=TIMES).build(build_param_groups(model, DECAY), RATE) for model in (whole, alone, blind)]
    for step in range(STEPS):
        parts = slopes(step, [(8, 8)] * 3)
        whole[0].weight.grad, blind[0].weight.grad = torch.cat(parts), torch.cat(parts)
        for layer, part in zip(alone, parts, strict=True):
            layer.weight.grad = part
        for optimizer in optimizers:
            optimizer.step()
    joined = torch.cat([layer.weight for layer in alone])
    assert far(whole[0].weight, joined) < 1e-4
    assert far(blind[0].weight, joined) > 1  # as one matrix it would have gone elsewhere


def small(**more):
    encoder = EncoderConfig(
        layers=2, width=16, mixer=Attention(heads=2, rotary=100.0, bias=False), norm="before", norm_bias=False, table=False,
        feedforward=FeedForwardConfig(inner=24, gated=True, bias=False), dropout=0.0, embedding=8, **more,
    )  # fmt: skip
    return build_model(ModelConfig(encoder=encoder, vocabulary=50, heads=SentencePairMLM().heads()), 0).train()


def give_slopes(model, step=0):
    """Those of a loss over words and pairs; every weight gets one."""
    tokens = (torch.arange(17) * 7 + step) % 50
    inputs = Inputs(tokens, Layout.from_lengths([5, 3, 9]), (torch.arange(17) > 8).long())
    hidden = model(inputs)
    total = model.entropy("words", hidden, (tokens * 3 + 1) % 50)[0] / 17
    (total + model.entropy("next", hidden[inputs.layout.first_token], torch.tensor([0, 1, 1]))[0]).backward()


def between(model):
    """Weights that Muon moves: matrices of the encoder that are no tables."""
    names = [name for name, weight in model.named_parameters() if weight.ndim == 2]
    return {name for name in names if not name.startswith("heads.") and not name.endswith(("tokens.weight", "segments.weight"))}


def test_which_weights_are_matrices_between_layers():
    model = small()
    marked = {weight for group in build_param_groups(model, DECAY) if group["matrices"] for weight in group["params"]}
    names = {name for name, weight in model.named_parameters() if weight in marked}
    block = {"mixer.project.qkv", "mixer.project.out", "feedforward.up", "feedforward.down"}
    blocks = {f"encoder.stack.blocks.{n}.{part}.weight" for n in range(2) for part in block}
    assert names == between(model) == {*blocks, "encoder.pooler.weight", "encoder.widen.weight"}
    parts = {name: weight.parts for name, weight in model.named_parameters() if getattr(weight, "parts", 1) > 1}
    assert set(parts.values()) == {2, 3} and all(name.endswith(("qkv.weight", "up.weight")) for name in parts)


def test_heads_tables_and_vectors_move_as_adamw_moves_them():
    """Given the same slopes, whatever the matrices do."""
    model, kind = small(), Muon(betas=(0.8, 0.95), eps=1e-5)
    peer = copy.deepcopy(model)
    optimizer = kind.build(build_param_groups(model, DECAY), RATE)
    matrices = between(model)
    rest = [
        {"params": [w for n, w in peer.named_parameters() if n not in matrices and (w.ndim > 1) == tall], "weight_decay": decay}
        for tall, decay in ((True, DECAY), (False, 0.0))
    ]
    adamw = torch.optim.AdamW(rest, lr=RATE, betas=kind.betas, eps=kind.eps)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for step in range(STEPS):
        give_slopes(model, step)
        for weight, other in zip(model.parameters(), peer.parameters(), strict=True):
            other.grad = weight.grad.clone()
        optimizer.step()
        adamw.step()
        optimizer.zero_grad()
    for (name, weight), other in zip(model.named_parameters(), peer.parameters(), strict=True):
        assert not torch.equal(weight, before[name]), name
        if name not in matrices:
            torch.testing.assert_close(weight, other, rtol=1e-5, atol=1e-6, msg=name)
            assert optimizer.state[weight].keys() == {"step", "exp_avg", "exp_avg_sq"}


def copied(optimizer, model):
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    return weights, {name: value.clone() for name, value in optimizer_state_by_name(optimizer, model).items()}


@pytest.mark.parametrize("slope", [float("nan"), float("inf"), 3.0])
def test_an_update_to_be_left_out_changes_nothing(slope):
    model = small()
    optimizer = Muon().build(build_param_groups(model, DECAY), RATE)
    for step in range(3):
        give_slopes(model, step)
        optimizer.step()
        optimizer.zero_grad()
    weights, state = copied(optimizer, model)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, slope)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    after, kept = copied(optimizer, model)
    assert state.keys() == kept.keys() and any(key.endswith("/momentum") for key in kept)
    assert not [name for name in weights if not torch.equal(weights[name], after[name])]
    assert not [name for name in state if not torch.equal(state[name], kept[name])]


def test_a_first_update_left_out_leaves_no_trace_in_what_follows():
    ends = []
    for left_out in (False, True):
        model = small()
        optimizer = Muon().build(build_param_groups(model, DECAY), RATE)
        if left_out:
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, float("nan"))
            optimizer.found_inf = torch.ones(())
            optimizer.step()
            optimizer.found_inf = torch.zeros(())
        for step in range(2):
            optimizer.zero_grad()
            give_slopes(model, step)
            optimizer.step()
        ends.append(list(model.parameters()))
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_run_goes_on_exactly_from_what_was_kept_by_name():
    model = small()
    optimizer = Muon().build(build_param_groups(model, DECAY), RATE)
    for step in range(6):
        if step == 3:
            kept, weights = (
                {k: v.clone() for k, v in optimizer_state_by_name(optimizer, model).items()},
                copy.deepcopy(model.state_dict()),
            )
        give_slopes(model, step)
        optimizer.step()
        optimizer.zero_grad()
    assert "encoder.stack.blocks.1.feedforward.up.weight/momentum" in kept and "encoder.tokens.weight/exp_avg_sq" in kept
    again = small()
    again.load_state_dict(weights)
    other = Muon().build(build_param_groups(again, DECAY), RATE)
    load_optimizer_state(other, again, kept)
    assert all(torch.equal(value, kept[key]) for key, value in optimizer_state_by_name(other, again).items())
    for step in range(3, 6):
        give_slopes(again, step)
        other.step()
        other.zero_grad()
    for (name, weight), end in zip(again.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(weight, end), name
    assert optimizer_state_by_name(other, again).keys() == optimizer_state_by_name(optimizer, model).keys()


def test_matrices_without_a_slope_stay_and_those_that_had_one_lose_it():
    model = small()
    optimizer = Muon().build(build_param_groups(model, DECAY), RATE)
    model(Inputs(torch.arange(9), Layout.from_lengths([9]))).square().mean().backward()  # nobody asks the pooler
    before = model.encoder.pooler.weight.detach().clone()
    optimizer.step()
    assert torch.equal(model.encoder.pooler.weight, before) and model.encoder.pooler.weight not in optimizer.state
    assert all(weight.grad is None for name, weight in model.named_parameters() if name in between(model))


def test_the_rate_of_matrices_is_so_many_times_that_of_the_run():
    ends = []
    for times, rate in ((10.0, 1e-3), (1.0, 1e-2)):
        matrices = Matrices()
        optimizer = Muon(times=times).build(build_param_groups(matrices, 0.0), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate  # as the trainer sets it
        for layer, slope in zip(matrices.layers, slopes(0), strict=True):
            layer.weight.grad = slope
        optimizer.step()
        ends.append(list(matrices.parameters()))
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other)
