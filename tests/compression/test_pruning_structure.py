"""Removing heads, neurons, layers and tokens: the matrices shrink, and the outputs are those of the model with zeros there."""

from copy import deepcopy

import msgspec
import numpy as np
import pytest
import torch

from bertsmith.compression.pruning.layers import choose_layers
from bertsmith.compression.pruning.structure import KeptUnits, check_heads, find_live_units, remove_layers, remove_units
from bertsmith.compression.pruning.vocabulary import check_vocabulary, select_rows
from bertsmith.errors import UserError
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.inference.predictor import Predictor
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.mixers import Attention, Longformer
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.tokenization.shrink import shrink_tokenizer
from tests.support.models import TOKENIZER

BASE = EncoderConfig(
    num_hidden_layers=3, hidden_size=24, mixer=Attention(num_attention_heads=4),
    feedforward=FeedForwardConfig(intermediate_size=40), max_position_embeddings=32, initializer_range=0.2,
)  # fmt: skip
VARIANTS = {
    "bert": BASE,
    "modern": msgspec.structs.replace(
        BASE, norm="pre", mixer=Attention(num_attention_heads=4, bias=False, rope_theta=10_000.0),
        feedforward=FeedForwardConfig(intermediate_size=40, glu=True, bias=False), position_embedding_type="none",
    ),
    "causal": msgspec.structs.replace(BASE, mixer=Attention(num_attention_heads=4, causal=True), norm="pre"),
    "albert": msgspec.structs.replace(BASE, num_hidden_groups=1),
}  # fmt: skip
KEPT = [KeptUnits((0, 2), (1, 2, 30)), KeptUnits((3,), (0,)), KeptUnits(None, tuple(range(0, 40, 3)))]


def random_model(encoder, **heads):
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads=heads), 0).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases too
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


def inputs():
    return Inputs(torch.arange(12) % len(TOKENIZER), Layout.from_lengths([5, 7]))


def zero_units(model, kept):
    """The same model with zeros for the columns that read a removed unit: nothing of it reaches the output."""
    model = deepcopy(model)
    with torch.no_grad():
        for block, units in zip(model.encoder.stack.layers, kept, strict=True):
            for weight, indices, count in (
                (block.mixer.projections.output.weight, units.heads, block.mixer.projections.num_heads),
                (block.feedforward.output.weight, units.neurons, block.feedforward.output.in_features),
            ):
                if indices is not None:
                    removed = [unit for unit in range(count) if unit not in indices]
                    weight.unflatten(1, (count, -1))[:, removed] = 0
    return model


@pytest.mark.parametrize("name", VARIANTS)
def test_removed_heads_and_neurons_equal_zeroed_ones(name, tmp_path):
    model = random_model(VARIANTS[name], lm=LMHeadConfig())
    kept = KEPT[:1] if name == "albert" else KEPT
    smaller, expected = remove_units(model, kept), zero_units(model, kept)
    with torch.no_grad():
        torch.testing.assert_close(smaller(inputs()), expected(inputs()), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(smaller(inputs()), model(inputs()), atol=1e-3)  # the removed units did something
    assert smaller.encoder.stack.layers[0].mixer.projections.qkv.weight.shape == (3 * 2 * 6, 24)
    assert smaller.encoder.stack.layers[0].feedforward.output.weight.shape == (24, 3)
    checkpoint.save(tmp_path / "small", smaller, TOKENIZER, {}, {})
    loaded = checkpoint.load(tmp_path / "small")[0]
    assert torch.equal(loaded(inputs()), smaller(inputs()))


def test_units_that_nothing_reads_are_found():
    model = zero_units(random_model(BASE), KEPT)
    live = find_live_units(model)
    assert live == [*KEPT[:2], KeptUnits((0, 1, 2, 3), KEPT[2].neurons)]
    torch.testing.assert_close(remove_units(model, live)(inputs()), model(inputs()), rtol=1e-6, atol=1e-6)


def test_pruned_causal_model_decodes_as_it_reads():
    smaller = remove_units(random_model(VARIANTS["causal"], lm=LMHeadConfig()), KEPT)
    engine = TorchEngine(smaller)
    predictor = Predictor(engine, TOKENIZER, {})
    generated = predictor.generate("the people", max_new_tokens=6)
    ids = [TOKENIZER.cls_token_id, *TOKENIZER.encode("the people").ids]
    for token_id in generated["token_ids"]:
        hidden_states = smaller(Inputs(torch.tensor(ids), Layout.from_lengths([len(ids)])))
        assert smaller.compute_logits("lm", hidden_states[-1:]).argmax() == token_id
        ids.append(token_id)


def test_units_are_removed_twice():
    model = random_model(BASE)
    once = remove_units(model, [KeptUnits((0, 2), None), KeptUnits((1, 2, 3), None), KeptUnits(None, (1, 5))])
    twice = remove_units(once, [KeptUnits((1,), None), KeptUnits(None, None), KeptUnits((0, 1), (1,))])
    at_once = remove_units(model, [KeptUnits((2,), None), KeptUnits((1, 2, 3), None), KeptUnits((0, 1), (5,))])
    assert twice.config == at_once.config and torch.equal(twice(inputs()), at_once(inputs()))


def test_sizes_that_all_layers_share_are_the_encoders():
    smaller = remove_units(random_model(BASE), [KeptUnits(None, (0, 1))] * 3)
    assert smaller.config.encoder.feedforward.intermediate_size == 2 and smaller.config.encoder.layer_sizes is None


def test_kept_layers_are_those_of_the_model():
    model = random_model(BASE)
    model = remove_units(model, KEPT)
    smaller = remove_layers(model, [1])
    states: list[torch.Tensor] = []
    model.encoder.stack.group_indices = [0, 2]
    expected = model(inputs(), states)
    assert torch.equal(smaller(inputs()), expected)
    assert smaller.config.encoder.num_hidden_layers == 2


def test_shared_layers_become_fewer_calls():
    model = random_model(VARIANTS["albert"])
    smaller = remove_layers(model, [0])
    assert smaller.config.encoder.num_hidden_layers == 2 and len(smaller.encoder.stack.layers) == 1


def test_layers_are_chosen():
    model = random_model(msgspec.structs.replace(BASE, num_hidden_layers=6))
    assert choose_layers("top", model, 2, None) == [4, 5]
    assert choose_layers("alternate", model, 3, None) == [1, 2, 4]
    with torch.no_grad():  # layers 2 and 4 do nothing but normalize what is normalized
        for layer in (2, 4):
            block = model.encoder.stack.layers[layer]
            for linear in (block.mixer.projections.output, block.feedforward.output):
                linear.weight.zero_()
                linear.bias.zero_()
    target = model(inputs())
    assert choose_layers("loss", model, 2, lambda m: (m(inputs()) - target).square().sum().item()) == [2, 4]


def test_pruned_vocabulary_gives_the_same_outputs():
    model = random_model(BASE, lm=LMHeadConfig())
    text = "the people said"
    ids = TOKENIZER.encode(text).ids
    used = np.zeros(len(TOKENIZER), bool)
    used[ids] = True
    shrunk = shrink_tokenizer(TOKENIZER, used)
    smaller = select_rows(model, shrunk)
    new_ids = shrunk.tokenizer.encode(text).ids
    assert [shrunk.tokenizer.id_to_token[i] for i in new_ids] == [TOKENIZER.id_to_token[i] for i in ids]
    assert len(shrunk.tokenizer) < len(TOKENIZER) and smaller.config.vocab_size == len(shrunk.tokenizer)
    layout = Layout.from_lengths([len(ids)])
    old, new = model(Inputs(torch.tensor(ids), layout)), smaller(Inputs(torch.tensor(new_ids), layout))
    assert torch.equal(old, new)
    logits = model.compute_logits("lm", old)[:, torch.from_numpy(shrunk.kept_ids)]
    torch.testing.assert_close(smaller.compute_logits("lm", new), logits, rtol=0, atol=1e-5)


def test_heads_of_other_mixers_are_refused():
    with pytest.raises(UserError, match="unit=head needs layers with mixer=attention"):
        check_heads(msgspec.structs.replace(BASE, mixer=Longformer(num_attention_heads=4)))


def test_an_adaptive_vocabulary_is_refused():
    encoder = EncoderConfig.presets()["elmo-transformer"]
    small = msgspec.structs.replace(encoder, hidden_size=32, num_hidden_layers=1)
    with pytest.raises(UserError, match="unit=vocab needs a model with a token table"):
        check_vocabulary(build_model(ModelConfig(encoder=small, vocab_size=len(TOKENIZER)), 0, TOKENIZER))
