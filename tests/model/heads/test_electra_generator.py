"""ELECTRA's generator: the sizes of the paper, shared embeddings, samples from its softmax."""

import pytest
import torch

from bertsmith.errors import UserError
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads.electra_generator import GeneratorHeadConfig
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.train.optim import build_param_groups
from tests.support.models import SMALL_ENCODER


@pytest.mark.parametrize(("preset", "size", "expected"), [  # Clark et al. 2020, table 6
    ("electra-small", 1 / 4, (64, 1, 256)), ("electra-base", 1 / 3, (256, 4, 1024)), ("electra-large", 1 / 4, (256, 4, 1024)),
])  # fmt: skip
def test_electra_generator_has_the_sizes_of_the_paper(preset, size, expected):
    discriminator = EncoderConfig.presets()[preset]
    generator = GeneratorHeadConfig(size=size).generator_config(discriminator)
    assert (generator.hidden_size, generator.mixer.num_attention_heads, generator.feedforward.intermediate_size) == expected
    assert generator.num_hidden_layers == discriminator.num_hidden_layers
    assert generator.embedding_dim == discriminator.embedding_dim


def test_electra_generator_needs_token_table_and_feedforward():
    with pytest.raises(UserError, match="objective=rtd needs a model with a token table"):
        GeneratorHeadConfig().generator_config(EncoderConfig.presets()["elmo"])


@pytest.fixture
def model() -> Model:
    heads = {"generator": GeneratorHeadConfig(size=0.5)}
    return build_model(ModelConfig(encoder=SMALL_ENCODER, vocab_size=30, heads=heads), 0).eval()


def test_electra_generator_trains_the_embeddings_of_the_discriminator(model):
    generator, inputs = model.heads["generator"], Inputs(torch.arange(12), Layout.from_lengths([5, 7]))
    loss, _ = generator.cross_entropy(generator(inputs, model.encoder), model.encoder, torch.arange(12))
    loss.sum().backward()
    assert model.encoder.word_embeddings.weight.grad.abs().sum() > 0
    assert all(weight.grad is None for weight in model.encoder.stack.parameters())
    assert not any("word_embeddings" in name for name, _ in generator.named_parameters())


def test_electra_generator_samples_from_its_softmax(model):
    generator = model.heads["generator"]
    hidden_states = torch.randn(1, 8, generator=torch.Generator().manual_seed(1)).expand(40_000, 8)
    probs = generator.lm_head(hidden_states[:1], model.encoder).softmax(-1)[0]
    frequencies = torch.bincount(generator.sample(hidden_states, model.encoder), minlength=30) / 40_000
    assert (frequencies - probs).abs().max() < 5 * (0.25 / 40_000) ** 0.5
    assert torch.equal(generator.sample(hidden_states, model.encoder), generator.sample(hidden_states, model.encoder))


def test_electra_generator_has_its_linear_layers_trained_by_muon(model):
    """Its blocks are an encoder, though the model keeps them among its heads."""
    names = {weight: name for name, weight in model.named_parameters()}
    matrices = [names[weight] for group in build_param_groups(model, 0.1) if group["matrices"] for weight in group["params"]]
    blocks = {name for name in matrices if name.startswith("heads.generator.")}
    assert blocks and all(".stack." in name for name in blocks)
    assert {name.removeprefix("heads.generator.") for name in blocks} == {
        name.removeprefix("encoder.") for name in matrices if name.startswith("encoder.stack.")
    }
