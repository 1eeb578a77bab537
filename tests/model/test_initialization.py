"""The standard deviation of initial weights: BERT's, scaled with the width of narrower models."""

import math

import pytest
import torch

from bertsmith.config import from_dict, from_user, to_dict
from bertsmith.model.config import EncoderConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.pretraining.setup import PretrainRecipe
from bertsmith.recipes import read_values


def weight_std(config):
    model = build_model(ModelConfig(encoder=config, vocab_size=500), seed=0)
    return float(
        torch.cat([p.flatten() for name, p in model.named_parameters() if p.ndim == 2 and "norm" not in name]).detach().std()
    )


@pytest.mark.parametrize(("hidden_size", "std"), [(128, 0.02 * math.sqrt(6)), (384, 0.02 * math.sqrt(2)), (768, 0.02)])
def test_default_grows_as_the_width_shrinks(hidden_size, std):
    heads = {"kind": "attention", "num_attention_heads": 2}
    config = from_dict(EncoderConfig, {"num_hidden_layers": 1, "hidden_size": hidden_size, "mixer": heads})
    assert config.init_std == pytest.approx(std)
    assert weight_std(config) == pytest.approx(0.8796 * std, rel=0.02)  # of a normal distribution, truncated at two deviations


def test_wide_models_and_explicit_values_keep_theirs():
    assert EncoderConfig(hidden_size=4096).init_std == 0.02
    assert EncoderConfig(hidden_size=64, initializer_range=0.3).init_std == 0.3


@pytest.mark.parametrize(("preset", "std"), [("bert-tiny", 0.02), ("electra-small", 0.02), ("transformer-xl", 0.02),
                                             ("bert-base", 0.02), ("gpt", 0.02), ("elmo", 0.05)])  # fmt: skip
def test_published_sizes_have_the_published_value(preset, std):
    assert EncoderConfig.presets()[preset].init_std == std


def test_preset_with_another_width_is_scaled():
    overrides = ["corpus=c", "out=o", "model=gpt", "model.hidden_size=128"]
    recipe = from_user(PretrainRecipe, *read_values(PretrainRecipe, None, overrides))
    assert recipe.model.init_std == pytest.approx(0.049, abs=1e-4)


def test_checkpoints_store_the_number():
    config = ModelConfig(encoder=EncoderConfig(hidden_size=192), vocab_size=10)
    assert to_dict(config)["encoder"]["initializer_range"] == pytest.approx(0.04)
    assert from_dict(ModelConfig, to_dict(config)) == config
