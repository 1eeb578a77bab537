"""Feature-based head: combinations of layers against plain sums of hidden states."""

import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.heads.features import FeatureHeadConfig, FeaturesConfig
from bertsmith.model.packing import Layout
from tests.support.models import SMALL_ENCODER, build_small_classifier, build_two_sequences

LAYOUT = Layout.from_lengths([5, 7])
INPUTS = Inputs(torch.tensor([2, 9, 4, 9, 3, 2, 7, 31, 8, 40, 1, 3]), LAYOUT)  # 31 and 40 are behind a vocabulary of 30


def random_layers():
    torch.manual_seed(0)
    return [torch.randn(12, 16) for _ in range(3)]  # embeddings and two layers


def build_head(layer_norm=False, **features):
    torch.manual_seed(1)
    return (
        FeatureHeadConfig(outputs=2, features=FeaturesConfig(layer_norm=layer_norm, **features)).build(SMALL_ENCODER, 30).eval()
    )


def test_feature_head_layer_combinations():
    low, middle, top = random_layers()
    assert_close(build_head(layers="last").combine_layers(random_layers(), INPUTS), top)
    assert_close(build_head(layers="sum", last=2).combine_layers(random_layers(), INPUTS), middle + top)
    assert_close(build_head(layers="concat", last=2).combine_layers(random_layers(), INPUTS), torch.cat([middle, top], -1))
    mix = build_head(layers="mix")
    assert_close(mix.combine_layers(random_layers(), INPUTS), (low + middle + top) / 3)
    with torch.no_grad():
        mix.input_layers.layer_weights.copy_(torch.tensor([0.0, 1.0, 2.0]))
        mix.input_layers.gamma.fill_(3.0)
    weights = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    assert_close(mix.combine_layers(random_layers(), INPUTS), 3 * (weights[0] * low + weights[1] * middle + weights[2] * top))


def test_feature_head_mix_selects_one_layer_as_taglm():
    low, top, _ = random_layers()
    mix = FeatureHeadConfig(outputs=2, features=FeaturesConfig(layers="mix", layer_norm=False)).build(
        replace(SMALL_ENCODER, num_hidden_layers=1), 30
    )
    with torch.no_grad():
        mix.input_layers.layer_weights.copy_(torch.tensor([-1e4, 0.0]))
        mix.input_layers.gamma.fill_(2.0)
    assert_close(mix.combine_layers([low, top], INPUTS), 2 * top)


def test_feature_head_bilstm_stays_within_sequences():
    head = build_head(layers="last", lstm=1)
    together = head.combine_layers(random_layers(), INPUTS)
    separately = [head.lstm(sequence[None])[0][0] for sequence in random_layers()[-1].split([5, 7])]
    assert_close(together, torch.cat(separately))
    changed = random_layers()
    changed[-1][4] += 1  # changing the last token of sequence 0 changes its first, and no other sequence
    difference = (head.combine_layers(changed, INPUTS) - together).abs().amax(-1)
    assert difference[0] > 0 and difference[5:].max() == 0


@pytest.mark.parametrize("layers", ["last", "sum", "concat", "mix"])
def test_feature_head_layer_norm_makes_layers_equally_long(layers):
    """LayerNorm without parameters per layer and token: a long layer weighs no more than a short one."""
    states = [scale * layer + scale for scale, layer in zip((1.0, 50.0, 0.1), random_layers(), strict=True)]
    normed = [
        (layer - layer.mean(-1, keepdim=True)) / (layer.var(-1, correction=0, keepdim=True) + 1e-5).sqrt() for layer in states
    ]
    expected = build_head(layers=layers, last=2).combine_layers(normed, INPUTS)
    assert_close(build_head(layers=layers, last=2, layer_norm=True).combine_layers(states, INPUTS), expected)


def test_feature_head_norms_layers_by_default_where_they_have_no_learned_weights():
    assert [FeaturesConfig(layers=layers).norms_layers for layers in ("last", "sum", "concat", "mix")] == [
        False,
        True,
        True,
        False,
    ]
    assert not FeaturesConfig(layer_norm=False).norms_layers and FeaturesConfig(layers="mix", layer_norm=True).norms_layers


def scalar_mix(combination, states):
    weights = combination.layer_weights.exp() / combination.layer_weights.exp().sum()
    return combination.gamma * sum(weight * layer for weight, layer in zip(weights, states, strict=True))


def run_lstm(lstm, x):
    """Each sequence on its own."""
    return torch.cat([lstm(sequence[None])[0][0] for sequence in x.split([5, 7])])


@pytest.mark.parametrize(("at", "lstm"), [("input", 0), ("input", 1), ("hidden", 2), ("hidden", 3), ("output", 1), ("both", 2)])
def test_supplemented_task_model_concatenates_own_embeddings_and_features(at, lstm):
    """ELMo (Peters et al. 2018, section 3.3): [x; ELMo] into the task model and [h; ELMo'] out of it. TagLM (2017, section
    3.4): [h_1; LM] between its two layers."""
    states, head = random_layers(), build_head(layers="mix", lstm=lstm, embedding_size=6, at=at)
    for combination in (head.input_layers, head.output_layers):
        if combination is not None:
            torch.nn.init.normal_(combination.layer_weights)
            combination.gamma.data.uniform_(0.5, 2.0)
    x = head.embeddings.weight[[min(token, 30) for token in INPUTS.input_ids.tolist()]]
    if at in ("input", "both"):
        x = torch.cat([x, scalar_mix(head.input_layers, states)], -1)
    if lstm:
        x = run_lstm(head.lstm, x)
    if at == "hidden":
        x = run_lstm(head.upper_lstm, torch.cat([x, scalar_mix(head.input_layers, states)], -1))
    if at in ("output", "both"):
        x = torch.cat([x, scalar_mix(head.output_layers, states)], -1)
    assert_close(head.combine_layers(states, INPUTS), x)
    logits = head(head.combine_layers(states, INPUTS), None)
    logits.square().sum().backward()
    assert not [name for name, weight in head.named_parameters() if weight.grad is None or not weight.grad.any()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": "hidden", "lstm": 1, "embedding_size": 4}, r"set features\.lstm=2"),
        ({"at": "both"}, r"set features\.lstm=1"),
        ({"at": "output", "lstm": 1}, r"set features\.embedding_size"),
    ],
)
def test_supplement_refuses_a_place_that_the_task_model_does_not_have(options, message):
    with pytest.raises(UserError, match=message):
        build_head(layers="mix", **options)


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
