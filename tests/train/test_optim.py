"""Optimizers against slow loops written from their formulas."""

import math

import pytest
import torch
from torch import nn

from bertsmith.errors import UserError
from bertsmith.train.optim import Adamw, BertAdam, Lamb, Muon, build_param_groups, load_optimizer_state, optimizer_state_by_name

from . import toy_objective as toy

RATE, DECAY, EPS, BETAS = 0.05, 0.1, 1e-6, (0.8, 0.95)


class Pair(nn.Module):
    """A matrix that decays and a vector that does not."""

    def __init__(self):
        super().__init__()
        dice = torch.Generator().manual_seed(3)
        self.matrix = nn.Parameter(torch.randn(2, 3, generator=dice, dtype=torch.float64))
        self.vector = nn.Parameter(torch.randn(4, generator=dice, dtype=torch.float64))


def gradients(step):
    dice = torch.Generator().manual_seed(100 + step)
    return [torch.randn(2, 3, generator=dice, dtype=torch.float64), torch.randn(4, generator=dice, dtype=torch.float64)]


def moved(kind, steps=6, decay=DECAY):
    pair = Pair()
    optimizer = kind(betas=BETAS, eps=EPS).build(build_param_groups(pair, decay), RATE)
    for step in range(steps):
        pair.matrix.grad, pair.vector.grad = gradients(step)
        optimizer.step()
    return pair.matrix.tolist(), pair.vector.tolist()


def slow_adam(correct, trust, decay=DECAY, steps=6):
    """Number by number, on lists."""
    flat = [[w for row in Pair().matrix.tolist() for w in row], Pair().vector.tolist()]
    for which, weights in enumerate(flat):
        means, squares = [0.0] * len(weights), [0.0] * len(weights)
        for t in range(1, steps + 1):
            updates, grads = [], gradients(t - 1)[which].flatten().tolist()
            for i, g in enumerate(grads):
                means[i] = BETAS[0] * means[i] + (1 - BETAS[0]) * g
                squares[i] = BETAS[1] * squares[i] + (1 - BETAS[1]) * g * g
                m = means[i] / (1 - BETAS[0] ** t) if correct else means[i]
                v = squares[i] / (1 - BETAS[1] ** t) if correct else squares[i]
                updates.append(m / (math.sqrt(v) + EPS) + (decay * weights[i] if which == 0 else 0.0))
            long, far = math.hypot(*weights), math.hypot(*updates)
            ratio = long / far if trust and which == 0 and long and far else 1.0
            for i, update in enumerate(updates):
                weights[i] -= RATE * ratio * update
    return [flat[0][:3], flat[0][3:]], flat[1]


@pytest.mark.parametrize("decay", [DECAY, 0.0])
@pytest.mark.parametrize(("kind", "correct", "trust"), [(Adamw, True, False), (BertAdam, False, False), (Lamb, True, True)])
def test_an_optimizer_does_what_its_formula_says(kind, correct, trust, decay):
    for mine, slow in zip(moved(kind, decay=decay), slow_adam(correct, trust, decay), strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(slow), rtol=1e-6, atol=1e-7)


def test_bert_adam_is_adamw_whose_correction_was_undone():
    """At step t, AdamW with rate, eps and decay scaled by its own corrections takes the very same step."""
    pair = Pair()
    optimizer = Adamw(betas=BETAS, eps=EPS).build(build_param_groups(pair, DECAY), RATE)
    for step in range(6):
        pair.matrix.grad, pair.vector.grad = gradients(step)
        first, second = 1 - BETAS[0] ** (step + 1), math.sqrt(1 - BETAS[1] ** (step + 1))
        for group, decay in zip(optimizer.param_groups, (DECAY, 0.0), strict=True):
            group.update(lr=RATE * first / second, eps=EPS / second, weight_decay=decay * second / first)
        optimizer.step()
    for mine, theirs in zip(moved(BertAdam), (pair.matrix, pair.vector), strict=True):
        torch.testing.assert_close(torch.tensor(mine, dtype=torch.float64), theirs.detach(), rtol=1e-9, atol=1e-12)


def test_lamb_moves_a_zero_matrix_and_trusts_without_decay():
    pair = Pair()
    with torch.no_grad():
        pair.matrix.zero_()
    optimizer = Lamb(betas=BETAS, eps=EPS).build(build_param_groups(pair, 0.0), RATE)
    pair.matrix.grad = gradients(0)[0]
    optimizer.step()
    torch.testing.assert_close(pair.matrix.detach(), -RATE * pair.matrix.grad.sign(), rtol=1e-4, atol=0)


def trained(kind):
    model = toy.Model()
    optimizer = kind().build(build_param_groups(model, 0.01), 1e-3)
    for _ in range(2):
        model(torch.arange(20)).square().sum().backward()  # the heads have no gradient, so no state
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("kind", [Adamw, BertAdam, Lamb, Muon])
def test_state_is_kept_by_the_names_of_the_weights(kind):
    model, optimizer = trained(kind)
    tensors = optimizer_state_by_name(optimizer, model)
    assert "tokens.weight/exp_avg" in tensors and not any(key.startswith("words") for key in tensors)
    again = kind().build(build_param_groups(model, 0.01), 1e-3)
    load_optimizer_state(again, model, tensors)
    assert optimizer_state_by_name(again, model).keys() == tensors.keys()
    assert all(torch.equal(value, tensors[key]) for key, value in optimizer_state_by_name(again, model).items())


def test_state_of_another_model_is_refused():
    model, optimizer = trained(Adamw)
    tensors = optimizer_state_by_name(optimizer, model)
    with pytest.raises(UserError, match=r"stranger/exp_avg .* does not train"):
        load_optimizer_state(optimizer, model, {**tensors, "stranger/exp_avg": torch.zeros(2)})
    with pytest.raises(UserError, match=r"inner\.bias/exp_avg \[2\], its shape is \[16\]"):
        load_optimizer_state(optimizer, model, {**tensors, "inner.bias/exp_avg": torch.zeros(2)})
    model.tokens.weight.requires_grad_(False)
    with pytest.raises(UserError, match="does not train"):
        load_optimizer_state(Adamw().build(build_param_groups(model, 0.01), 1e-3), model, tensors)
