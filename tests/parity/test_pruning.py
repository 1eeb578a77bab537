"""Pruning scores against the papers' formulas written out, and pruned models against transformers with masked heads."""

import pytest
import torch
import transformers
from torch import nn

from bertsmith.compression.pruning.masks import SCORE_DECAY, Pruner
from bertsmith.compression.pruning.structure import KeptUnits, remove_units
from bertsmith.compression.recovery.teacher import relative_error
from bertsmith.convert.huggingface import folder as huggingface
from bertsmith.model.batch import Inputs
from bertsmith.model.packing import Layout
from tests.support.models import build_small_classifier, build_two_sequences

LABELS = torch.tensor([0, 1])


def compute_loss(model):
    logits = model.compute_logits("task", model.encoder.pool_tokens(build_two_sequences()))
    return nn.functional.cross_entropy(logits, LABELS)


def mask_grads(model, pruner):
    """dL/dξ of every unit, by central finite differences in float64."""
    grads = []
    for masked in pruner.masks:
        grad = torch.zeros_like(masked.mask)
        for index in range(masked.mask.numel()):
            values = []
            for step in (1e-4, -1e-4):
                masked.mask.view(-1)[index] += step
                with torch.no_grad():
                    values.append(float(compute_loss(model)))
                masked.mask.view(-1)[index] -= step
            grad.view(-1)[index] = (values[0] - values[1]) / 2e-4
        grads.append(grad)
    return grads


@pytest.mark.parametrize("unit", ["head", "neuron"])
def test_gradient_importance_equals_finite_differences(unit):
    """Michel et al. (2019), equation 2: I_h = |dL/dξ_h|, here of one batch."""
    model = build_small_classifier().double()
    pruner = Pruner(model, unit, "gradient", "global")
    expected = [grad.abs() for grad in mask_grads(model, pruner)]
    for module in pruner.masks:
        module.train()
    compute_loss(model).backward()
    for masked, grad in zip(pruner.masks, expected, strict=True):
        torch.testing.assert_close(masked.scores, grad, rtol=1e-6, atol=1e-9)
    model.zero_grad()
    compute_loss(model).backward()
    torch.testing.assert_close(pruner.masks[0].scores, expected[0] * (1 + SCORE_DECAY), rtol=1e-6, atol=1e-9)


def test_gradient_importance_equals_the_taylor_expansion():
    """Molchanov et al. (2017): |sum over the unit's weights of dL/dw w|."""
    model = build_small_classifier().double()
    compute_loss(model).backward()
    expected = []
    for block in model.encoder.stack.layers:
        weight = block.feedforward.output.weight
        expected.append([abs((weight[:, unit] @ weight.grad[:, unit]).item()) for unit in range(weight.shape[1])])
    pruner = Pruner(model, "neuron", "gradient", "global")
    for module in pruner.masks:
        module.train()
    compute_loss(model).backward()
    for masked, values in zip(pruner.masks, expected, strict=True):
        torch.testing.assert_close(masked.scores[0], torch.tensor(values, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("unit", "block"), [("weight", (1, 1)), ("block", (8, 4))])
def test_movement_scores_equal_a_naive_loop(unit, block):
    """Sanh et al. (2020), equation 3: S <- S - lr sum over steps of dL/dW' W; blocks sum it (Lagunas et al. 2021)."""
    model, rate, sparsity = build_small_classifier().double(), 0.5, 0.4
    plain = build_small_classifier().double()
    names = [name for name, module in plain.named_modules() if isinstance(module, nn.Linear) and ".stack.layers." in name]
    weights = {name: plain.get_submodule(name).weight.detach().clone() for name in names}
    scores = {
        name: torch.zeros(-(-w.shape[0] // block[0]), -(-w.shape[1] // block[1]), dtype=w.dtype) for name, w in weights.items()
    }
    pruner = Pruner(model, unit, "movement", "layer", block)
    modules = {name: model.get_submodule(name) for name in names}
    optimizer = torch.optim.SGD([masked.scores for masked in pruner.masks], lr=rate)
    with torch.no_grad():  # no ties
        for number, (name, module) in enumerate(modules.items()):
            start = 1e-3 * torch.randn(scores[name].shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            scores[name] += start
            module.parametrizations.weight[0].scores += start
    for _ in range(3):
        for name, weight in weights.items():  # naive: masks one by one
            linear = plain.get_submodule(name)
            kept = round((1 - sparsity) * scores[name].numel())
            threshold = sorted(scores[name].flatten().tolist(), reverse=True)[kept - 1]
            with torch.no_grad():
                for i in range(weight.shape[0]):
                    for j in range(weight.shape[1]):
                        is_kept = scores[name][i // block[0], j // block[1]] >= threshold
                        linear.weight[i, j] = weight[i, j] if is_kept else 0.0
        plain.zero_grad()
        compute_loss(plain).backward()
        for name, weight in weights.items():
            product = plain.get_submodule(name).weight.grad * weight
            for i in range(weight.shape[0]):
                for j in range(weight.shape[1]):
                    scores[name][i // block[0], j // block[1]] -= rate * product[i, j]
        pruner.update(sparsity)
        optimizer.zero_grad()
        compute_loss(model).backward()
        optimizer.step()
    for name, module in modules.items():
        torch.testing.assert_close(module.parametrizations.weight[0].scores.data, scores[name], rtol=1e-8, atol=1e-12)


def test_relative_error_is_that_of_the_teachers_states():
    teacher = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert relative_error(teacher, teacher) == 0
    assert relative_error(torch.zeros(5, 3), teacher) / 5 == pytest.approx(1.0, rel=1e-5)


def test_pruned_bert_equals_transformers_with_zeroed_heads_and_neurons(tmp_path):
    """transformers 5 has no prune_heads: there the columns that read the removed units are set to zero."""
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=40, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    original = transformers.BertModel(config).eval()
    original.save_pretrained(tmp_path / "hf")
    _, converted, _ = huggingface.read(tmp_path / "hf")
    kept = [KeptUnits((0, 3), tuple(range(0, 48, 2))), KeptUnits((1,), (0, 47)), KeptUnits((0, 1, 2), None)]
    for layer, units in zip(original.encoder.layer, kept, strict=True):
        with torch.no_grad():
            for head in set(range(4)) - set(units.heads):
                layer.attention.output.dense.weight[:, 8 * head : 8 * head + 8] = 0
            for neuron in set(range(48)) - set(units.neurons or range(48)):
                layer.output.dense.weight[:, neuron] = 0
    pruned = remove_units(converted.model, kept)
    ids = torch.randint(5, 60, (1, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = original(ids).last_hidden_state[0]
        torch.testing.assert_close(pruned(Inputs(ids[0], Layout.from_lengths([17]))), expected, rtol=1e-5, atol=1e-5)
