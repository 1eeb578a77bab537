"""Small matrices beside frozen ones, held to the formula of the paper."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model import lora
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import SequenceHeadConfig
from bertsmith.model.lora import LoraConfig, LoRALinear
from bertsmith.model.mixers import Attention
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig

ENCODER = EncoderConfig(
    layers=2, width=16, mixer=Attention(heads=2), feedforward=FeedForwardConfig(inner=32), positions=16, deviation=0.2
)


def model(seed: int = 0) -> Model:
    return build_model(ModelConfig(encoder=ENCODER, vocabulary=30, heads={"task": SequenceHeadConfig(outputs=2)}), seed).eval()


def inputs() -> Inputs:
    return Inputs(torch.arange(12) % 30, Layout.from_lengths([5, 7]))


def stirred(one: Model) -> Model:
    """As after some training: what begins at zero does not stay there."""
    torch.manual_seed(3)
    for part in one.modules():
        if isinstance(part, LoRALinear):
            torch.nn.init.normal_(part.up)
    return one


@pytest.mark.parametrize("on", ["attention", "all"])
def test_nothing_changes_until_something_is_learnt_and_merging_changes_nothing(on):
    plain, adapted = model(), model()
    lora.inject_adapters(adapted, LoraConfig(rank=3, on=on), seed=1)
    assert_close(adapted(inputs()), plain(inputs()))
    taught = stirred(adapted)(inputs())
    assert (taught - plain(inputs())).abs().max() > 1e-3
    lora.merge_and_unload(adapted)
    assert_close(adapted(inputs()), taught, atol=1e-5, rtol=1e-5)
    assert adapted.state_dict().keys() == plain.state_dict().keys()


def test_each_of_queries_keys_and_values_has_a_matrix_of_its_own():
    base = torch.nn.Linear(8, 24)
    beside = LoRALinear(base, LoraConfig(rank=2, alpha=6.0), num_parts=3)
    torch.nn.init.normal_(beside.up)
    x = torch.randn(5, 8)
    parts = [beside.up[i] @ beside.down[2 * i : 2 * i + 2] for i in range(3)]
    assert_close(beside(x), base(x) + 3.0 * x @ torch.cat(parts).T)


def test_only_what_is_beside_learns_and_the_head():
    adapted = model()
    lora.inject_adapters(adapted, LoraConfig(rank=2), seed=1)
    learns = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    expected = {"encoder.pooler.weight", "encoder.pooler.bias", "heads.task.score.weight", "heads.task.score.bias"}
    for block in range(2):
        for linear in ("qkv", "out"):
            expected |= {f"encoder.stack.blocks.{block}.mixer.project.{linear}.{part}" for part in ("up", "down")}
    assert learns == expected


def test_the_same_seed_begins_the_same():
    first, again, other = model(), model(), model()
    for one, seed in ((first, 1), (again, 1), (other, 2)):
        lora.inject_adapters(one, LoraConfig(), seed)
    name = "encoder.stack.blocks.0.mixer.project.qkv.down"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
