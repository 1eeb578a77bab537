"""LoRA against the formula of the paper (Hu et al. 2021)."""

import pytest
import torch
from torch.testing import assert_close

from bertsmith.model import lora
from bertsmith.model.lora import LoraConfig, LoRALinear
from bertsmith.model.model import Model
from tests.support.models import build_small_classifier, build_two_sequences


def randomize_adapters(model: Model) -> Model:
    """Random B matrices, as after some training."""
    torch.manual_seed(3)
    for module in model.modules():
        if isinstance(module, LoRALinear):
            torch.nn.init.normal_(module.lora_B)
    return model


@pytest.mark.parametrize("target_modules", ["attention", "all"])
def test_lora_is_identity_at_first_and_merge_keeps_outputs(target_modules):
    plain, adapted = build_small_classifier(), build_small_classifier()
    lora.inject_adapters(adapted, LoraConfig(r=3, target_modules=target_modules), seed=1)
    assert_close(adapted(build_two_sequences()), plain(build_two_sequences()))
    expected = randomize_adapters(adapted)(build_two_sequences())
    assert (expected - plain(build_two_sequences())).abs().max() > 1e-3
    lora.merge_and_unload(adapted)
    assert_close(adapted(build_two_sequences()), expected, atol=1e-5, rtol=1e-5)
    assert adapted.state_dict().keys() == plain.state_dict().keys()


def test_lora_fused_qkv_has_an_update_for_each_part():
    base = torch.nn.Linear(8, 24)
    layer = LoRALinear(base, LoraConfig(r=2, lora_alpha=6.0), num_parts=3)
    torch.nn.init.normal_(layer.lora_B)
    x = torch.randn(5, 8)
    updates = [layer.lora_B[i] @ layer.lora_A[2 * i : 2 * i + 2] for i in range(3)]
    assert_close(layer(x), base(x) + 3.0 * x @ torch.cat(updates).T)


def test_lora_trains_adapters_pooler_and_head_only():
    adapted = build_small_classifier()
    lora.inject_adapters(adapted, LoraConfig(r=2), seed=1)
    trainable = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    expected = {"encoder.pooler.weight", "encoder.pooler.bias", "heads.task.classifier.weight", "heads.task.classifier.bias"}
    for block in range(2):
        for linear in ("qkv", "output"):
            expected |= {f"encoder.stack.layers.{block}.mixer.projections.{linear}.{part}" for part in ("lora_A", "lora_B")}
    assert trainable == expected


def test_lora_initialization_is_seeded():
    first, again, other = build_small_classifier(), build_small_classifier(), build_small_classifier()
    for model, seed in ((first, 1), (again, 1), (other, 2)):
        lora.inject_adapters(model, LoraConfig(), seed)
    name = "encoder.stack.layers.0.mixer.projections.qkv.lora_A"
    assert torch.equal(first.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
