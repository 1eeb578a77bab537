"""Shared blocks, narrow tables and other activations are what transformers' ALBERT and ELECTRA make of them."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import DiscriminatorHeadConfig, LMHeadConfig
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.objectives import SentencePairMLM
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.parity.huggingface_models import imported, run, theirs, transformers

SMALL = {"layers": 5, "width": 32, "mixer": {"heads": 4}, "feedforward": {"inner": 40}, "positions": 24}


def small(heads=None, **encoder):
    config = from_dict(EncoderConfig, {**SMALL, **encoder})
    return build_model(ModelConfig(encoder=config, vocabulary=60, heads=heads or {}), 0).eval()


def inputs(**more):
    return Inputs(torch.arange(30) % 60, Layout.from_lengths([9, 21]), **more)


@pytest.mark.parametrize("preset", [name for name in EncoderConfig.presets if name.startswith("albert-")])
def test_every_preset_has_the_size_transformers_gives_it(preset):
    config = EncoderConfig.presets[preset]
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=config, vocabulary=30_000, heads=SentencePairMLM().heads()))
        sizes = {"hidden_size": config.width, "num_hidden_layers": config.layers, "num_attention_heads": config.mixer.heads}
        peer = transformers.AlbertForPreTraining(transformers.AlbertConfig(intermediate_size=config.feedforward.inner, **sizes))
    assert sum(w.numel() for w in model.parameters()) == sum(w.numel() for w in peer.parameters())


def test_the_published_size_of_the_base_model():
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=EncoderConfig.presets["albert-base"], vocabulary=30_000))
    assert sum(weight.numel() for weight in model.parameters()) == 11_683_584


@pytest.mark.parametrize(("layers", "groups"), [(6, 1), (6, 2), (5, 2), (7, 3), (18, 14), (4, 4)])
def test_blocks_are_called_in_the_order_of_albert(layers, groups, tmp_path):
    original = theirs("AlbertModel", tmp_path / "hf", num_hidden_layers=layers, num_hidden_groups=groups)
    _, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    assert len(model.encoder.stack.blocks) == groups
    tokens = torch.arange(5, 25)
    kept = []
    model(Inputs(tokens, Layout.from_lengths([20])), kept)
    wanted = original(tokens[None], output_hidden_states=True).hidden_states
    assert len(kept) == layers + 1
    for ours, peer in zip(kept, wanted, strict=True):
        assert_close(ours, peer[0], atol=1e-4, rtol=1e-4)  # eighteen layers of weights this large round farther apart


def test_a_shared_block_is_one_set_of_tensors_and_learns_from_every_call(tmp_path):
    shared, apart = small(groups=1), small()
    assert [name for name in shared.state_dict() if ".blocks." in name] == [
        name for name in apart.state_dict() if ".blocks.0." in name
    ]
    for block in apart.encoder.stack.blocks:
        block.load_state_dict(shared.encoder.stack.blocks[0].state_dict())
    shared(inputs()).square().sum().backward()
    apart.load_state_dict(
        {name: weight for name, weight in shared.state_dict().items() if ".blocks." not in name}, strict=False
    )
    apart(inputs()).square().sum().backward()
    slopes = [block.feedforward.up.weight.grad for block in apart.encoder.stack.blocks]
    assert_close(shared.encoder.stack.blocks[0].feedforward.up.weight.grad, sum(slopes), atol=1e-5, rtol=1e-4)


def test_recomputing_activations_of_shared_blocks_changes_nothing():
    model = small(groups=2, dropout=0.0).train()
    plain = torch.autograd.grad(model(inputs()).square().sum(), model.encoder.tokens.weight)[0]
    model.encoder.stack.gradient_checkpointing = True
    again = torch.autograd.grad(model(inputs()).square().sum(), model.encoder.tokens.weight)[0]
    assert torch.equal(plain, again)


def test_narrow_tables_are_projected_after_their_norm_and_score_words_by_themselves():
    model = small(embedding=8, heads=SentencePairMLM().heads())
    assert model.encoder.tokens.weight.shape == (60, 8) and model.encoder.norm.normalized_shape == (8,)
    hidden = model(inputs())
    assert hidden.shape == (30, 32) and model.compute_logits("words", hidden).shape == (30, 60)
    kept = []
    model(inputs(nudge=torch.zeros(30, 8)), kept)
    embedded = (
        model.encoder.tokens(inputs().input_ids)
        + model.encoder.positions(inputs().layout.position)
        + model.encoder.segments.weight[0]
    )
    assert_close(kept[0], model.encoder.widen(model.encoder.norm(embedded, None)[0]))


def test_more_blocks_than_layers_are_refused():
    with pytest.raises(UserError, match=r"6 different blocks for 5 layers; lower model\.groups"):
        small(groups=6)


def test_a_plain_berts_tensors_have_the_names_they_always_had():
    names = set(small().state_dict())
    assert "encoder.stack.blocks.4.feedforward.up.weight" in names and not any("widen" in name for name in names)
    tops = {name.split(".")[1] for name in names}
    assert tops == {"tokens", "positions", "segments", "norm", "stack", "pooler"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("AlbertForMaskedLM", {"embedding_size": 32}),  # as wide as the blocks, and projected all the same
        ("ElectraForMaskedLM", {"embedding_size": 32}),  # as wide as the blocks, and not projected
        ("AlbertForMaskedLM", {"num_hidden_groups": 5}),  # nothing shared
        ("BertForMaskedLM", {"hidden_act": "relu"}),
        ("BertForMaskedLM", {"hidden_act": "gelu_new"}),
        ("AlbertForMaskedLM", {"hidden_act": "relu"}),
        ("DistilBertForMaskedLM", {"activation": "relu"}),
        ("RobertaForSequenceClassification", {"hidden_act": "relu"}),
        ("ElectraForPreTraining", {"hidden_act": "relu"}),
    ],
)
def test_sizes_and_activations_come_and_go(name, settings, tmp_path):
    theirs(name, tmp_path / "hf", **settings)
    result, _, _ = imported(tmp_path / "hf", tmp_path / "ours", check=True)
    assert max(result["differences"].values()) < 1e-5
    assert run("export", model=tmp_path / "ours", out=tmp_path / "back")["class"] == name
    given, back = (load_file(tmp_path / place / "model.safetensors") for place in ("hf", "back"))
    assert given.keys() == back.keys() and all(torch.equal(given[key], back[key]) for key in given)
    config = json.loads((tmp_path / "back/config.json").read_text())
    assert {key: config[key] for key in settings} == settings


@pytest.mark.parametrize("spelt", ["gelu_fast", "gelu_pytorch_tanh", "gelu_python"])
def test_other_spellings_of_gelu_are_known(spelt, tmp_path):
    theirs("BertModel", tmp_path / "hf", hidden_act=spelt)
    result, _, _ = imported(tmp_path / "hf", tmp_path / "ours", check=True)
    assert result["differences"]["hidden"] < 1e-5


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "ElectraForMaskedLM"])
def test_a_head_over_words_with_another_activation_than_the_blocks_is_refused(name, tmp_path):
    theirs(name, tmp_path / "hf", hidden_act="relu")
    with pytest.raises(UserError, match=r"the blocks have relu.*this model has one for both"):
        imported(tmp_path / "hf", tmp_path / "ours")


def test_our_own_models_go_to_the_family_that_can_say_them(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    for number, (heads, encoder, wanted) in enumerate((
        (SentencePairMLM().heads(), {"groups": 2, "embedding": 8}, "AlbertForPreTraining"),
        ({"words": LMHeadConfig()}, {"embedding": 8}, "AlbertForMaskedLM"),
        ({"replaced": DiscriminatorHeadConfig()}, {"embedding": 8}, "ElectraForPreTraining"),
        ({"replaced": DiscriminatorHeadConfig()}, {}, "ElectraForPreTraining"),
        ({"words": LMHeadConfig()}, {"groups": 5}, "BertForMaskedLM"),
        ({}, {"pooler": "tanh"}, "BertModel"),
    )):  # fmt: skip
        config = ModelConfig(encoder=from_dict(EncoderConfig, {**SMALL, **encoder}), vocabulary=len(tokenizer), heads=heads)
        checkpoint.save(tmp_path / f"{number}", build_model(config, 0), tokenizer, {}, {"stage": "test"})
        result = run("export", model=tmp_path / f"{number}", out=tmp_path / f"hf-{number}", check=True)
        assert result["class"] == wanted and max(result["differences"].values()) < 1e-5
    for number, encoder in enumerate(({"groups": 2}, {"pooler": "relu"})):
        words = f"bert cannot say {next(f'{key} = {value!r}' for key, value in encoder.items())}"
        config = ModelConfig(
            encoder=from_dict(EncoderConfig, {**SMALL, **encoder}), vocabulary=len(tokenizer), heads=SentencePairMLM().heads()
        )
        checkpoint.save(tmp_path / f"no-{number}", build_model(config, 0), tokenizer, {}, {"stage": "test"})
        with pytest.raises(UserError, match=words):
            run("export", model=tmp_path / f"no-{number}", out=tmp_path / "no")
