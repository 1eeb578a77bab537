"""What a head reads of several layers, held to plain sums of hidden states."""

import pytest
import torch
from msgspec.structs import replace
from torch.testing import assert_close

from bertsmith.errors import UserError
from bertsmith.model.heads.features import FeatureHeadConfig, FeaturesConfig
from bertsmith.model.packing import Layout

from .test_lora import ENCODER, inputs, model

LAYOUT = Layout.from_lengths([5, 7])


def states():
    torch.manual_seed(0)
    return [torch.randn(12, 16) for _ in range(3)]  # embeddings and two layers


def head(**features):
    torch.manual_seed(1)
    return FeatureHeadConfig(outputs=2, features=FeaturesConfig(**features)).build(ENCODER, 30).eval()


def test_layers_are_joined_as_the_words_say():
    low, middle, top = states()
    assert_close(head(layers="last").combine_layers(states(), LAYOUT), top)
    assert_close(head(layers="sum", last=2).combine_layers(states(), LAYOUT), middle + top)
    assert_close(head(layers="concat", last=2).combine_layers(states(), LAYOUT), torch.cat([middle, top], -1))
    mix = head(layers="mix")
    assert_close(mix.combine_layers(states(), LAYOUT), (low + middle + top) / 3)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 1.0, 2.0]))
        mix.scale.fill_(3.0)
    shares = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    assert_close(mix.combine_layers(states(), LAYOUT), 3 * (shares[0] * low + shares[1] * middle + shares[2] * top))


def test_a_mix_of_one_layer_and_its_words_is_taglms():
    low, top, _ = states()
    mix = FeatureHeadConfig(outputs=2, features=FeaturesConfig(layers="mix")).build(replace(ENCODER, layers=1), 30)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([-1e4, 0.0]))
        mix.scale.fill_(2.0)
    assert_close(mix.combine_layers([low, top], LAYOUT), 2 * top)


def test_an_lstm_reads_each_sequence_alone_and_both_ways():
    one = head(layers="last", lstm=1)
    together = one.combine_layers(states(), LAYOUT)
    alone = [one.lstm(part[None])[0][0] for part in states()[-1].split([5, 7])]
    assert_close(together, torch.cat(alone))
    changed = states()
    changed[-1][4] += 1  # the last token of the first sequence moves the first, and nothing beyond the border
    difference = (one.combine_layers(changed, LAYOUT) - together).abs().amax(-1)
    assert difference[0] > 0 and difference[5:].max() == 0


def test_more_layers_than_there_are_is_refused():
    with pytest.raises(UserError, match=r"features\.last=4"):
        head(layers="concat")


def test_a_model_tells_its_layers_from_the_embeddings_up():
    kept = []
    out = model()(inputs(), kept)
    assert len(kept) == 3 and torch.equal(kept[-1], out)
    block = model().encoder.stack.blocks[0]
    assert_close(block(None, kept[0], inputs().layout)[0], kept[1])


def test_the_mean_of_a_sequence_is_of_its_own_tokens():
    x = states()[0]
    assert_close(LAYOUT.mean_pool(x), torch.stack([x[:5].mean(0), x[5:].mean(0)]))
