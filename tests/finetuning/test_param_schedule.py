"""Layer-wise learning rates and weight decay of the parameter groups, for every mixer."""

import re
import typing

import pytest
import torch

from bertsmith.finetuning.setup import build_param_schedule, freeze
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import PooledHeadConfig
from bertsmith.model.mixers import MixerConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.train.optim import Adamw, build_param_groups
from bertsmith.train.param_groups import set_learning_rates

NUM_LAYERS, DECAY, LEARNING_RATE = 3, 0.5, 1e-2


def small_model(**encoder):
    config = EncoderConfig(hidden_size=48, num_hidden_layers=NUM_LAYERS, max_position_embeddings=64, **encoder)
    return build_model(ModelConfig(encoder=config, vocab_size=30, heads={"task": PooledHeadConfig(labels=2)}), 0)


def optimizer_groups(model, weight_decay=0.1, **schedule):
    """Parameter group of each parameter, by name, with the learning rates set."""
    groups = build_param_groups(model, weight_decay, build_param_schedule(len(model.encoder.stack.layers), **schedule))
    optimizer = Adamw().build(groups, LEARNING_RATE)
    set_learning_rates(optimizer, LEARNING_RATE)
    names = {id(param): name for name, param in model.named_parameters()}
    return {names[id(param)]: group for group in optimizer.param_groups for param in group["params"]}


@pytest.mark.parametrize("mixer", typing.get_args(MixerConfig), ids=lambda mixer: mixer.__struct_config__.tag)
def test_layer_lr_decay_multiplies_each_layer_from_the_top(mixer):
    model = small_model(mixer=mixer())
    groups, depths = optimizer_groups(model, layer_decay=DECAY, head_lr_multiplier=10.0), set()
    assert groups.keys() == dict(model.named_parameters()).keys()
    for name, group in groups.items():
        if match := re.match(r"encoder\.stack\.layers\.(\d+)\.", name):
            layers_from_top = NUM_LAYERS - int(match[1])
            depths.add(layers_from_top)
            assert group["lr"] == pytest.approx(LEARNING_RATE * DECAY**layers_from_top), name
        elif name.startswith("heads."):
            assert group["lr"] == pytest.approx(10 * LEARNING_RATE), name
        elif name.startswith("encoder.word_embeddings"):
            assert group["lr"] == pytest.approx(LEARNING_RATE * DECAY ** (NUM_LAYERS + 1)), name
    assert depths == {1, 2, 3}


@pytest.mark.parametrize("mixer", typing.get_args(MixerConfig), ids=lambda mixer: mixer.__struct_config__.tag)
def test_weight_decay_applies_to_matrices_only(mixer):
    model = small_model(mixer=mixer())
    groups = optimizer_groups(model, layer_decay=DECAY)
    for name, param in model.named_parameters():
        assert groups[name]["weight_decay"] == (0.1 if param.ndim > 1 else 0.0), name


def test_layer_lr_decay_scales_the_update():
    model = small_model()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    groups = build_param_groups(model, 0.0, build_param_schedule(NUM_LAYERS, DECAY))
    optimizer = Adamw(eps=1e-12).build(groups, LEARNING_RATE)
    set_learning_rates(optimizer, LEARNING_RATE)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    for layer in range(NUM_LAYERS):  # the first step of Adam has the size of the learning rate
        name = next(name for name in before if name.startswith(f"encoder.stack.layers.{layer}."))
        change = (model.get_parameter(name) - before[name]).abs().max().item()
        assert change == pytest.approx(LEARNING_RATE * DECAY ** (NUM_LAYERS - layer), rel=1e-3)


def test_gradual_unfreezing_starts_with_the_top_layer():
    groups = optimizer_groups(small_model(), unfreeze_fraction=0.8)
    unfreeze_at = [
        next(group["unfreeze_at"] for name, group in groups.items() if name.startswith(prefix))
        for prefix in ("heads.", *(f"encoder.stack.layers.{layer}." for layer in (2, 1, 0)), "encoder.word_embeddings")
    ]
    assert unfreeze_at == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])


def test_freeze_all_trains_the_head_alone():
    model = small_model(pooler_act="tanh")
    freeze(model, "all")
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("heads.")} != set()


def test_freezing_every_layer_by_number_still_trains_the_pooler():
    model = small_model(pooler_act="tanh")
    freeze(model, NUM_LAYERS)
    assert model.encoder.pooler.weight.requires_grad and not model.encoder.word_embeddings.weight.requires_grad
