"""Masks: which units stay, the cubic schedule, and what checkpoints hold."""

import pytest
import torch

from bertsmith.compression.pruning.masks import MaskedWeight, Pruner, count_kept
from bertsmith.compression.pruning.schedule import CubicSchedule
from bertsmith.errors import UserError
from tests.support.models import build_small_classifier, build_two_sequences


def test_sparsity_rises_along_a_cubic():
    schedule = CubicSchedule(begin=0.2, end=0.6)
    assert [schedule.sparsity(0.8, t) for t in (0.0, 0.2, 0.6, 1.0)] == [0, 0, 0.8, 0.8]
    assert schedule.sparsity(0.8, 0.4) == pytest.approx(0.8 * (1 - 0.5**3))
    with pytest.raises(UserError, match=r"sparsity_schedule\.begin=0\.5 must be below"):
        CubicSchedule(begin=0.5, end=0.5).check()


def test_counts_of_kept_units():
    scores = [torch.tensor([1.0, 2, 3, 4]), torch.tensor([10.0, 20, 30, 40])]
    assert count_kept(scores, 0.5, "layer", "magnitude") == [2, 2]
    assert count_kept(scores, 0.5, "global", "magnitude") == [0, 4]
    assert count_kept(scores, 0.5, "global", "magnitude", at_least=1) == [1, 3]
    assert count_kept(scores, 0.5, "global", "gradient") == [2, 2]  # divided by the norm of the layer
    assert count_kept([torch.arange(40.0)], 0.3, "layer", "magnitude", multiple=8) == [16]
    assert count_kept(scores, 1.0, "layer", "magnitude", multiple=8) == [4, 4]


@pytest.mark.parametrize("unit", ["head", "neuron", "weight", "block"])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_masks_keep_the_largest_units(unit, scope):
    model = build_small_classifier()
    pruner = Pruner(model, unit, "magnitude", scope, (8, 8))
    pruner.update(0.5)
    assert pruner.sparsity == pytest.approx(0.5, abs=0.02)
    for masked, (_, linear) in zip(pruner.masks, pruner.linears, strict=True):
        kept, removed = masked.scores[masked.mask == 1], masked.scores[masked.mask == 0]
        assert not len(kept) or not len(removed) or kept.min() >= removed.max()
        assert bool((linear.weight == 0).any()) == bool(len(removed))
    before = model(build_two_sequences())
    pruner.remove()
    assert not any("parametrizations" in name for name in model.state_dict())
    assert torch.equal(model(build_two_sequences()), before)


def test_blocks_at_the_edge_are_smaller():
    weight = torch.arange(1.0, 36).reshape(5, 7)
    masked = MaskedWeight(weight, (2, 3), "magnitude")
    assert masked.mask.shape == (3, 3)
    expected = [[weight[i : i + 2, j : j + 3].norm().item() for j in (0, 3, 6)] for i in (0, 2, 4)]
    torch.testing.assert_close(masked.update_scores(weight), torch.tensor(expected))
    masked.mask[2, 1] = 0
    expected_weight = weight.clone()
    expected_weight[4:, 3:6] = 0
    assert torch.equal(masked(weight), expected_weight)


def test_final_masks_stay():
    model = build_small_classifier()
    pruner = Pruner(model, "neuron", "movement", "layer")
    torch.nn.init.normal_(pruner.masks[0].scores, generator=torch.Generator().manual_seed(0))
    pruner.update(0.5, is_final=True)
    mask = pruner.masks[0].mask.clone()
    with torch.no_grad():
        pruner.masks[0].scores.neg_()
    pruner.update(0.5)
    assert torch.equal(pruner.masks[0].mask, mask)
    loaded = Pruner(other := build_small_classifier(1), "neuron", "movement", "layer")
    other.load_state_dict(model.state_dict())
    assert loaded.is_final and torch.equal(loaded.masks[0].mask, mask)
