"""Optimizers against plain Python loops written from their formulas."""

import math

import pytest
import torch
from torch import nn

from bertsmith.errors import UserError
from bertsmith.train.optim import Adamw, BertAdam, Lamb, Muon, build_param_groups, load_optimizer_state, optimizer_state_by_name
from tests.support import toy_objective as toy

LEARNING_RATE, WEIGHT_DECAY, EPS, BETAS = 0.05, 0.1, 1e-6, (0.8, 0.95)


class MatrixAndVector(nn.Module):
    """A matrix with weight decay and a vector without."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.matrix = nn.Parameter(torch.randn(2, 3, generator=generator, dtype=torch.float64))
        self.vector = nn.Parameter(torch.randn(4, generator=generator, dtype=torch.float64))


def random_grads(step):
    generator = torch.Generator().manual_seed(100 + step)
    return [
        torch.randn(2, 3, generator=generator, dtype=torch.float64),
        torch.randn(4, generator=generator, dtype=torch.float64),
    ]


def run_optimizer(config_class, steps=6, weight_decay=WEIGHT_DECAY):
    model = MatrixAndVector()
    optimizer = config_class(betas=BETAS, eps=EPS).build(build_param_groups(model, weight_decay), LEARNING_RATE)
    for step in range(steps):
        model.matrix.grad, model.vector.grad = random_grads(step)
        optimizer.step()
    return model.matrix.tolist(), model.vector.tolist()


def reference_adam(bias_correction, trust_ratio, weight_decay=WEIGHT_DECAY, steps=6):
    """Element by element, on lists."""
    params = [[w for row in MatrixAndVector().matrix.tolist() for w in row], MatrixAndVector().vector.tolist()]
    for index, weights in enumerate(params):
        exp_avg, exp_avg_sq = [0.0] * len(weights), [0.0] * len(weights)
        for t in range(1, steps + 1):
            updates, grads = [], random_grads(t - 1)[index].flatten().tolist()
            for i, g in enumerate(grads):
                exp_avg[i] = BETAS[0] * exp_avg[i] + (1 - BETAS[0]) * g
                exp_avg_sq[i] = BETAS[1] * exp_avg_sq[i] + (1 - BETAS[1]) * g * g
                m = exp_avg[i] / (1 - BETAS[0] ** t) if bias_correction else exp_avg[i]
                v = exp_avg_sq[i] / (1 - BETAS[1] ** t) if bias_correction else exp_avg_sq[i]
                updates.append(m / (math.sqrt(v) + EPS) + (weight_decay * weights[i] if index == 0 else 0.0))
            weight_norm, update_norm = math.hypot(*weights), math.hypot(*updates)
            ratio = weight_norm / update_norm if trust_ratio and index == 0 and weight_norm and update_norm else 1.0
            for i, update in enumerate(updates):
                weights[i] -= LEARNING_RATE * ratio * update
    return [params[0][:3], params[0][3:]], params[1]


@pytest.mark.parametrize("weight_decay", [WEIGHT_DECAY, 0.0])
@pytest.mark.parametrize(
    ("config_class", "bias_correction", "trust_ratio"), [(Adamw, True, False), (BertAdam, False, False), (Lamb, True, True)]
)
def test_optimizer_matches_formula(config_class, bias_correction, trust_ratio, weight_decay):
    for result, expected in zip(
        run_optimizer(config_class, weight_decay=weight_decay),
        reference_adam(bias_correction, trust_ratio, weight_decay),
        strict=True,
    ):
        torch.testing.assert_close(torch.tensor(result), torch.tensor(expected), rtol=1e-6, atol=1e-7)


def test_bert_adam_is_adamw_without_bias_correction():
    """At step t, AdamW with lr, eps and weight decay scaled by its bias corrections takes the same step."""
    model = MatrixAndVector()
    optimizer = Adamw(betas=BETAS, eps=EPS).build(build_param_groups(model, WEIGHT_DECAY), LEARNING_RATE)
    for step in range(6):
        model.matrix.grad, model.vector.grad = random_grads(step)
        correction1, correction2 = 1 - BETAS[0] ** (step + 1), math.sqrt(1 - BETAS[1] ** (step + 1))
        for group, weight_decay in zip(optimizer.param_groups, (WEIGHT_DECAY, 0.0), strict=True):
            group.update(
                lr=LEARNING_RATE * correction1 / correction2,
                eps=EPS / correction2,
                weight_decay=weight_decay * correction2 / correction1,
            )
        optimizer.step()
    for result, expected in zip(run_optimizer(BertAdam), (model.matrix, model.vector), strict=True):
        torch.testing.assert_close(torch.tensor(result, dtype=torch.float64), expected.detach(), rtol=1e-9, atol=1e-12)


def test_lamb_updates_zero_matrix():
    model = MatrixAndVector()
    with torch.no_grad():
        model.matrix.zero_()
    optimizer = Lamb(betas=BETAS, eps=EPS).build(build_param_groups(model, 0.0), LEARNING_RATE)
    model.matrix.grad = random_grads(0)[0]
    optimizer.step()
    torch.testing.assert_close(model.matrix.detach(), -LEARNING_RATE * model.matrix.grad.sign(), rtol=1e-4, atol=0)


def train_toy_model(config_class):
    model = toy.Model()
    optimizer = config_class().build(build_param_groups(model, 0.01), 1e-3)
    for _ in range(2):
        model(torch.arange(20)).square().sum().backward()  # the heads have no gradient, so no state
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("config_class", [Adamw, BertAdam, Lamb, Muon])
def test_optimizer_state_by_name_round_trips(config_class):
    model, optimizer = train_toy_model(config_class)
    tensors = optimizer_state_by_name(optimizer, model)
    assert "tokens.weight/exp_avg" in tensors and not any(key.startswith("words") for key in tensors)
    restored = config_class().build(build_param_groups(model, 0.01), 1e-3)
    load_optimizer_state(restored, model, tensors)
    assert optimizer_state_by_name(restored, model).keys() == tensors.keys()
    assert all(torch.equal(value, tensors[key]) for key, value in optimizer_state_by_name(restored, model).items())


def test_optimizer_state_of_another_model_is_refused():
    model, optimizer = train_toy_model(Adamw)
    tensors = optimizer_state_by_name(optimizer, model)
    with pytest.raises(UserError, match=r"stranger/exp_avg .* does not train"):
        load_optimizer_state(optimizer, model, {**tensors, "stranger/exp_avg": torch.zeros(2)})
    with pytest.raises(UserError, match=r"inner\.bias/exp_avg \[2\], its shape is \[16\]"):
        load_optimizer_state(optimizer, model, {**tensors, "inner.bias/exp_avg": torch.zeros(2)})
    model.tokens.weight.requires_grad_(False)
    with pytest.raises(UserError, match="does not train"):
        load_optimizer_state(Adamw().build(build_param_groups(model, 0.01), 1e-3), model, tensors)
