"""Muon against torch.optim.Muon; embeddings, heads and vectors against torch's AdamW."""

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
from bertsmith.objectives import NextSentenceMLM, ReplacedTokenDetection
from bertsmith.train.optim import Muon, build_param_groups, load_optimizer_state, newton_schulz, optimizer_state_by_name

LEARNING_RATE, WEIGHT_DECAY, LR_MULTIPLIER, STEPS = 2e-3, 0.1, 10.0, 5
SHAPES = [(8, 8), (24, 8), (8, 24), (1, 6), (6, 1), (8, 8), (40, 64)]


class Matrices(nn.Module):
    """Linear layers of several shapes, two of them the same."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(columns, rows, bias=False) for rows, columns in SHAPES)
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.3, generator=generator)


def random_grads(step, shapes=SHAPES):
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator) * 10.0 ** (i % 5 - 2) for i, shape in enumerate(shapes)]


def max_difference(ours, theirs):
    """Largest difference, in units of one update."""
    return (ours - theirs).abs().max().item() / (LEARNING_RATE * LR_MULTIPLIER)


@pytest.mark.parametrize("decay", [WEIGHT_DECAY, 0.0])
@pytest.mark.parametrize("momentum", [0.95, 0.5])
@pytest.mark.parametrize("bf16", [False, True])
def test_muon_matches_torch_muon(decay, momentum, bf16, monkeypatch):
    """Up to rounding where torch's is made to compute in float32, as ours on a CPU; roughly in its bfloat16."""
    if not bf16:
        monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.float().clone())
    ours, theirs = Matrices(), Matrices()
    optimizer = Muon(momentum=momentum, lr_multiplier=LR_MULTIPLIER).build(build_param_groups(ours, decay), LEARNING_RATE)
    reference_optimizer = torch.optim.Muon(
        theirs.parameters(),
        lr=LEARNING_RATE * LR_MULTIPLIER,
        weight_decay=decay,
        momentum=momentum,
        nesterov=True,
        adjust_lr_fn="original",
    )
    initial = [weight.detach().clone() for weight in ours.parameters()]
    for step in range(STEPS):
        for param, reference, grad in zip(ours.parameters(), theirs.parameters(), random_grads(step), strict=True):
            param.grad, reference.grad = grad.clone(), grad.clone()
        optimizer.step()
        reference_optimizer.step()
        for param, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert max_difference(param, reference) < (0.2 if bf16 else 1e-4)
            torch.testing.assert_close(
                optimizer.state[param]["momentum"], reference_optimizer.state[reference]["momentum_buffer"]
            )
    changes = [(weight - before).abs().mean() for weight, before in zip(ours.parameters(), initial, strict=True)]
    assert min(changes) > LEARNING_RATE  # far more than the tolerance


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 48, 16), (2, 16, 48), (1, 1, 5)])
def test_newton_schulz_brings_singular_values_near_one(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    out = newton_schulz(x).float()
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    rotated = u.mT @ out @ v.mT  # diagonal if singular vectors are preserved
    singular_values = rotated.diagonal(dim1=1, dim2=2)
    assert out.shape == x.shape and singular_values.min() > 0.4 and singular_values.max() < 1.3
    assert (rotated - torch.diag_embed(singular_values)).abs().max() < 0.05
    assert not newton_schulz(torch.zeros(shape)).any()


def test_muon_orthogonalizes_parts_of_fused_matrix_separately():
    """As for fused QKV and GLU matrices."""
    fused, separate = (
        nn.ModuleList([nn.Linear(8, 24, bias=False)]),
        nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3)),
    )
    unmarked = copy.deepcopy(fused)
    fused[0].num_parts = 3
    with torch.no_grad():
        for layer, part in zip(separate, fused[0].weight.chunk(3), strict=True):
            layer.weight.copy_(part)
    optimizers = [
        Muon(lr_multiplier=LR_MULTIPLIER).build(build_param_groups(model, WEIGHT_DECAY), LEARNING_RATE)
        for model in (fused, separate, unmarked)
    ]
    for step in range(STEPS):
        parts = random_grads(step, [(8, 8)] * 3)
        fused[0].weight.grad, unmarked[0].weight.grad = torch.cat(parts), torch.cat(parts)
        for layer, part in zip(separate, parts, strict=True):
            layer.weight.grad = part
        for optimizer in optimizers:
            optimizer.step()
    expected = torch.cat([layer.weight for layer in separate])
    assert max_difference(fused[0].weight, expected) < 1e-4
    assert max_difference(unmarked[0].weight, expected) > 1  # orthogonalized as one matrix, the result differs


def build_small_model(**options):
    encoder = EncoderConfig(
        num_hidden_layers=2, hidden_size=16, mixer=Attention(num_attention_heads=2, rope_theta=100.0, bias=False),
        norm="pre", norm_bias=False, position_embedding_type="none", hidden_dropout_prob=0.0, embedding_size=8,
        feedforward=FeedForwardConfig(intermediate_size=24, glu=True, bias=False), **options,
    )  # fmt: skip
    return build_model(ModelConfig(encoder=encoder, vocab_size=50, heads=NextSentenceMLM().heads()), 0).train()


def backward(model, step=0):
    """Gradients of an MLM + NSP loss; every parameter gets one."""
    tokens = (torch.arange(17) * 7 + step) % 50
    inputs = Inputs(tokens, Layout.from_lengths([5, 3, 9]), (torch.arange(17) > 8).long())
    hidden_states = model(inputs)
    mlm_loss = model.cross_entropy("lm", hidden_states, (tokens * 3 + 1) % 50)[0] / 17
    (mlm_loss + model.cross_entropy("nsp", hidden_states[inputs.layout.first_token], torch.tensor([0, 1, 1]))[0]).backward()


def muon_weight_names(model):
    """Weights that Muon updates: matrices of the encoder that are not embeddings."""
    names = [name for name, weight in model.named_parameters() if weight.ndim == 2]
    return {name for name in names if not name.startswith("heads.") and not name.endswith("_embeddings.weight")}


def test_muon_groups_hold_linear_layers_of_encoder():
    model = build_small_model()
    muon_params = {
        weight for group in build_param_groups(model, WEIGHT_DECAY) if group["matrices"] for weight in group["params"]
    }
    names = {name for name, weight in model.named_parameters() if weight in muon_params}
    block = {"mixer.projections.qkv", "mixer.projections.output", "feedforward.intermediate", "feedforward.output"}
    blocks = {f"encoder.stack.layers.{i}.{part}.weight" for i in range(2) for part in block}
    assert names == muon_weight_names(model) == {*blocks, "encoder.pooler.weight", "encoder.embedding_projection.weight"}
    parts = {name: module.num_parts for name, module in model.named_modules() if getattr(module, "num_parts", 1) > 1}
    assert set(parts.values()) == {2, 3} and all(name.endswith(("qkv", "intermediate")) for name in parts)


def test_muon_updates_heads_embeddings_and_vectors_by_adamw():
    """Given the same gradients, whatever the matrices do."""
    model, config = build_small_model(), Muon(betas=(0.8, 0.95), eps=1e-5)
    reference_model = copy.deepcopy(model)
    optimizer = config.build(build_param_groups(model, WEIGHT_DECAY), LEARNING_RATE)
    matrices = muon_weight_names(model)
    groups = [
        {
            "params": [
                param
                for param_name, param in reference_model.named_parameters()
                if param_name not in matrices and (param.ndim > 1) == is_matrix
            ],
            "weight_decay": decay,
        }
        for is_matrix, decay in ((True, WEIGHT_DECAY), (False, 0.0))
    ]
    adamw = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=config.betas, eps=config.eps)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for step in range(STEPS):
        backward(model, step)
        for weight, reference in zip(model.parameters(), reference_model.parameters(), strict=True):
            reference.grad = weight.grad.clone()
        optimizer.step()
        adamw.step()
        optimizer.zero_grad()
    for (name, weight), reference in zip(model.named_parameters(), reference_model.parameters(), strict=True):
        assert not torch.equal(weight, before[name]), name
        if name not in matrices:
            torch.testing.assert_close(weight, reference, rtol=1e-5, atol=1e-6, msg=name)
            assert optimizer.state[weight].keys() == {"step", "exp_avg", "exp_avg_sq"}


def copy_state(optimizer, model):
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    return weights, {name: value.clone() for name, value in optimizer_state_by_name(optimizer, model).items()}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.0])
def test_muon_found_inf_skips_update(value):
    model = build_small_model()
    optimizer = Muon().build(build_param_groups(model, WEIGHT_DECAY), LEARNING_RATE)
    for step in range(3):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    weights, state = copy_state(optimizer, model)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, value)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    weights_after, state_after = copy_state(optimizer, model)
    assert state.keys() == state_after.keys() and any(key.endswith("/momentum") for key in state_after)
    assert not [name for name in weights if not torch.equal(weights[name], weights_after[name])]
    assert not [name for name in state if not torch.equal(state[name], state_after[name])]


def test_muon_skipped_first_update_has_no_effect():
    results = []
    for skip_first in (False, True):
        model = build_small_model()
        optimizer = Muon().build(build_param_groups(model, WEIGHT_DECAY), LEARNING_RATE)
        if skip_first:
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, float("nan"))
            optimizer.found_inf = torch.ones(())
            optimizer.step()
            optimizer.found_inf = torch.zeros(())
        for step in range(2):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
        results.append(list(model.parameters()))
    for param, expected in zip(*results, strict=True):
        torch.testing.assert_close(param, expected, rtol=1e-6, atol=1e-7)


def test_muon_resumes_exactly_from_state_by_name():
    model = build_small_model()
    optimizer = Muon().build(build_param_groups(model, WEIGHT_DECAY), LEARNING_RATE)
    for step in range(6):
        if step == 3:
            saved_state, saved_weights = (
                {k: v.clone() for k, v in optimizer_state_by_name(optimizer, model).items()},
                copy.deepcopy(model.state_dict()),
            )
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    assert (
        "encoder.stack.layers.1.feedforward.intermediate.weight/momentum" in saved_state
        and "encoder.word_embeddings.weight/exp_avg_sq" in saved_state
    )
    resumed = build_small_model()
    resumed.load_state_dict(saved_weights)
    resumed_optimizer = Muon().build(build_param_groups(resumed, WEIGHT_DECAY), LEARNING_RATE)
    load_optimizer_state(resumed_optimizer, resumed, saved_state)
    assert all(
        torch.equal(value, saved_state[key]) for key, value in optimizer_state_by_name(resumed_optimizer, resumed).items()
    )
    for step in range(3, 6):
        backward(resumed, step)
        resumed_optimizer.step()
        resumed_optimizer.zero_grad()
    for (name, weight), expected in zip(resumed.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(weight, expected), name
    assert optimizer_state_by_name(resumed_optimizer, resumed).keys() == optimizer_state_by_name(optimizer, model).keys()


def test_muon_leaves_matrices_without_grad_and_clears_grads():
    model = build_small_model()
    optimizer = Muon().build(build_param_groups(model, WEIGHT_DECAY), LEARNING_RATE)
    model(Inputs(torch.arange(9), Layout.from_lengths([9]))).square().mean().backward()  # the pooler is not used
    before = model.encoder.pooler.weight.detach().clone()
    optimizer.step()
    assert torch.equal(model.encoder.pooler.weight, before) and model.encoder.pooler.weight not in optimizer.state
    assert all(weight.grad is None for name, weight in model.named_parameters() if name in muon_weight_names(model))


def test_muon_lr_multiplier_scales_learning_rate():
    results = []
    for lr_multiplier, lr in ((10.0, 1e-3), (1.0, 1e-2)):
        matrices = Matrices()
        optimizer = Muon(lr_multiplier=lr_multiplier).build(build_param_groups(matrices, 0.0), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr  # as the trainer sets it
        for layer, grad in zip(matrices.layers, random_grads(0), strict=True):
            layer.weight.grad = grad
        optimizer.step()
        results.append(list(matrices.parameters()))
    for weight, expected in zip(*results, strict=True):
        torch.testing.assert_close(weight, expected)


def test_muon_trains_the_blocks_of_an_electra_generator_but_not_its_head():
    encoder = EncoderConfig(num_hidden_layers=1, hidden_size=16, mixer=Attention(num_attention_heads=4), embedding_size=16,
                            feedforward=FeedForwardConfig(intermediate_size=24))  # fmt: skip
    model = build_model(ModelConfig(encoder=encoder, vocab_size=50, heads=ReplacedTokenDetection().heads()), 0)
    names = {param: name for name, param in model.named_parameters()}
    by_muon = {names[param] for group in build_param_groups(model, 0.1) if group["matrices"] for param in group["params"]}
    blocks = {name for name, param in model.named_parameters() if ".stack.layers." in name and param.ndim == 2}
    in_generator = {name for name in by_muon if name.startswith("heads.")}
    assert blocks <= by_muon and in_generator == {name for name in blocks if name.startswith("heads.")} != set()
