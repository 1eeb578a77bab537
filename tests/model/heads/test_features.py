"""Feature-based head: combinations of layers against plain sums of hidden states."""

import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.heads.features import FeatureHeadConfig, FeaturesConfig
from bertsmith.model.packing import Layout
from tests.support.models import SMALL_ENCODER, build_small_classifier, build_two_sequences

LAYOUT = Layout.from_lengths([5, 7])


def random_layers():
    torch.manual_seed(0)
    return [torch.randn(12, 16) for _ in range(3)]  # embeddings and two layers


def build_head(**features):
    torch.manual_seed(1)
    return FeatureHeadConfig(outputs=2, features=FeaturesConfig(**features)).build(SMALL_ENCODER, 30).eval()


def test_feature_head_layer_combinations():
    low, middle, top = random_layers()
    assert_close(build_head(layers="last").combine_layers(random_layers(), LAYOUT), top)
    assert_close(build_head(layers="sum", last=2).combine_layers(random_layers(), LAYOUT), middle + top)
    assert_close(build_head(layers="concat", last=2).combine_layers(random_layers(), LAYOUT), torch.cat([middle, top], -1))
    mix = build_head(layers="mix")
    assert_close(mix.combine_layers(random_layers(), LAYOUT), (low + middle + top) / 3)
    with torch.no_grad():
        mix.layer_weights.copy_(torch.tensor([0.0, 1.0, 2.0]))
        mix.gamma.fill_(3.0)
    weights = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    assert_close(mix.combine_layers(random_layers(), LAYOUT), 3 * (weights[0] * low + weights[1] * middle + weights[2] * top))


def test_feature_head_mix_selects_one_layer_as_taglm():
    low, top, _ = random_layers()
    mix = FeatureHeadConfig(outputs=2, features=FeaturesConfig(layers="mix")).build(
        replace(SMALL_ENCODER, num_hidden_layers=1), 30
    )
    with torch.no_grad():
        mix.layer_weights.copy_(torch.tensor([-1e4, 0.0]))
        mix.gamma.fill_(2.0)
    assert_close(mix.combine_layers([low, top], LAYOUT), 2 * top)


def test_feature_head_bilstm_stays_within_sequences():
    head = build_head(layers="last", lstm=1)
    together = head.combine_layers(random_layers(), LAYOUT)
    separately = [head.lstm(sequence[None])[0][0] for sequence in random_layers()[-1].split([5, 7])]
    assert_close(together, torch.cat(separately))
    changed = random_layers()
    changed[-1][4] += 1  # changing the last token of sequence 0 changes its first, and no other sequence
    difference = (head.combine_layers(changed, LAYOUT) - together).abs().amax(-1)
    assert difference[0] > 0 and difference[5:].max() == 0


def test_feature_head_rejects_more_layers_than_the_model_has():
    with pytest.raises(UserError, match=r"features\.last=4"):
        build_head(layers="concat")


def test_model_returns_all_hidden_states():
    all_hidden_states = []
    out = build_small_classifier()(build_two_sequences(), all_hidden_states)
    assert len(all_hidden_states) == 3 and torch.equal(all_hidden_states[-1], out)
    block = build_small_classifier().encoder.stack.layers[0]
    assert_close(block(None, all_hidden_states[0], build_two_sequences().layout)[0], all_hidden_states[1])


def test_mean_pool_averages_each_sequence():
    x = random_layers()[0]
    assert_close(LAYOUT.mean_pool(x), torch.stack([x[:5].mean(0), x[5:].mean(0)]))
