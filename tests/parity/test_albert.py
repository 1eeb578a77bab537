"""Parity with transformers' ALBERT and ELECTRA: shared blocks, small embeddings, other activations."""

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
from bertsmith.objectives import NextSentenceMLM, SentenceOrderMLM
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.huggingface_models import import_folder, run_stage, save_random_model, transformers

SMALL = {
    "num_hidden_layers": 5,
    "hidden_size": 32,
    "mixer": {"num_attention_heads": 4},
    "feedforward": {"intermediate_size": 40},
    "max_position_embeddings": 24,
}


def build_small_model(heads=None, **overrides):
    config = from_dict(EncoderConfig, {**SMALL, **overrides})
    return build_model(ModelConfig(encoder=config, vocab_size=60, heads=heads or {}), 0).eval()


def build_inputs(**fields):
    return Inputs(torch.arange(30) % 60, Layout.from_lengths([9, 21]), **fields)


@pytest.mark.parametrize("preset", [name for name in EncoderConfig.presets() if name.startswith("albert-")])
def test_albert_presets_have_the_parameter_count_of_transformers(preset):
    config = EncoderConfig.presets()[preset]
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=config, vocab_size=30_000, heads=NextSentenceMLM().heads()))
        sizes = {
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.mixer.num_attention_heads,
        }
        reference = transformers.AlbertForPreTraining(
            transformers.AlbertConfig(intermediate_size=config.feedforward.intermediate_size, **sizes)
        )
    assert sum(weight.numel() for weight in model.parameters()) == sum(weight.numel() for weight in reference.parameters())


def test_albert_base_has_the_published_parameter_count():
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=EncoderConfig.presets()["albert-base"], vocab_size=30_000))
    assert sum(weight.numel() for weight in model.parameters()) == 11_683_584


@pytest.mark.parametrize(("layers", "groups"), [(6, 1), (6, 2), (5, 2), (7, 3), (18, 14), (4, 4)])
def test_albert_shared_blocks_run_in_order(layers, groups, tmp_path):
    original = save_random_model("AlbertModel", tmp_path / "hf", num_hidden_layers=layers, num_hidden_groups=groups)
    _, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    assert len(model.encoder.stack.layers) == groups
    tokens = torch.arange(5, 25)
    all_hidden_states = []
    model(Inputs(tokens, Layout.from_lengths([20])), all_hidden_states)
    expected = original(tokens[None], output_hidden_states=True).hidden_states
    assert len(all_hidden_states) == layers + 1
    for state, reference_state in zip(all_hidden_states, expected, strict=True):
        assert_close(
            state, reference_state[0], atol=1e-4, rtol=1e-4
        )  # rounding adds up over eighteen layers with large weights


def test_albert_shared_block_is_stored_once_and_sums_grads(tmp_path):
    shared, separate = build_small_model(num_hidden_groups=1), build_small_model()
    assert [name for name in shared.state_dict() if ".layers." in name] == [
        name for name in separate.state_dict() if ".layers.0." in name
    ]
    for block in separate.encoder.stack.layers:
        block.load_state_dict(shared.encoder.stack.layers[0].state_dict())
    shared(build_inputs()).square().sum().backward()
    separate.load_state_dict(
        {name: weight for name, weight in shared.state_dict().items() if ".layers." not in name}, strict=False
    )
    separate(build_inputs()).square().sum().backward()
    grads = [block.feedforward.intermediate.weight.grad for block in separate.encoder.stack.layers]
    assert_close(shared.encoder.stack.layers[0].feedforward.intermediate.weight.grad, sum(grads), atol=1e-5, rtol=1e-4)


def test_albert_gradient_checkpointing_changes_nothing():
    model = build_small_model(num_hidden_groups=2, hidden_dropout_prob=0.0).train()
    expected = torch.autograd.grad(model(build_inputs()).square().sum(), model.encoder.word_embeddings.weight)[0]
    model.encoder.stack.gradient_checkpointing = True
    recomputed = torch.autograd.grad(model(build_inputs()).square().sum(), model.encoder.word_embeddings.weight)[0]
    assert torch.equal(expected, recomputed)


def test_albert_small_embeddings_are_projected_after_layer_norm():
    model = build_small_model(embedding_size=8, heads=NextSentenceMLM().heads())
    assert model.encoder.word_embeddings.weight.shape == (60, 8) and model.encoder.embedding_norm.normalized_shape == (8,)
    hidden = model(build_inputs())
    assert hidden.shape == (30, 32) and model.compute_logits("lm", hidden).shape == (30, 60)
    all_hidden_states = []
    model(build_inputs(embedding_delta=torch.zeros(30, 8)), all_hidden_states)
    embeddings = (
        model.encoder.word_embeddings(build_inputs().input_ids)
        + model.encoder.position_embeddings(build_inputs().layout.position)
        + model.encoder.token_type_embeddings.weight[0]
    )
    assert_close(all_hidden_states[0], model.encoder.embedding_projection(model.encoder.embedding_norm(embeddings, None)[0]))


def test_albert_rejects_more_groups_than_layers():
    with pytest.raises(UserError, match=r"6 different blocks for 5 layers; lower model\.num_hidden_groups"):
        build_small_model(num_hidden_groups=6)


def test_bert_state_dict_names():
    names = set(build_small_model().state_dict())
    assert "encoder.stack.layers.4.feedforward.intermediate.weight" in names and not any(
        "embedding_projection" in name for name in names
    )
    modules = {name.split(".")[1] for name in names}
    assert modules == {
        "word_embeddings", "position_embeddings", "token_type_embeddings", "embedding_norm", "stack", "pooler",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("AlbertForMaskedLM", {"embedding_size": 32}),  # embedding size = hidden size, projected all the same
        ("ElectraForMaskedLM", {"embedding_size": 32}),  # embedding size = hidden size, not projected
        ("AlbertForMaskedLM", {"num_hidden_groups": 5}),  # no sharing
        ("BertForMaskedLM", {"hidden_act": "relu"}),
        ("BertForMaskedLM", {"hidden_act": "gelu_new"}),
        ("AlbertForMaskedLM", {"hidden_act": "relu"}),
        ("DistilBertForMaskedLM", {"activation": "relu"}),
        ("RobertaForSequenceClassification", {"hidden_act": "relu"}),
        ("ElectraForPreTraining", {"hidden_act": "relu"}),
    ],
)
def test_huggingface_round_trip_of_sizes_and_activations(name, settings, tmp_path):
    save_random_model(name, tmp_path / "hf", **settings)
    result, _, _ = import_folder(tmp_path / "hf", tmp_path / "ours", check=True)
    assert max(result["differences"].values()) < 1e-5
    assert run_stage("export", model=tmp_path / "ours", out=tmp_path / "back")["class"] == name
    original, exported = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "back"))
    assert original.keys() == exported.keys() and all(torch.equal(original[key], exported[key]) for key in original)
    config = json.loads((tmp_path / "back/config.json").read_text())
    assert {key: config[key] for key in settings} == settings


@pytest.mark.parametrize("hidden_act", ["gelu_fast", "gelu_pytorch_tanh", "gelu_python"])
def test_huggingface_gelu_synonyms_are_imported(hidden_act, tmp_path):
    save_random_model("BertModel", tmp_path / "hf", hidden_act=hidden_act)
    result, _, _ = import_folder(tmp_path / "hf", tmp_path / "ours", check=True)
    assert result["differences"]["hidden"] < 1e-5


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "ElectraForMaskedLM"])
def test_import_rejects_lm_head_with_other_activation(name, tmp_path):
    save_random_model(name, tmp_path / "hf", hidden_act="relu")
    with pytest.raises(UserError, match=r"the layers use relu.*different activations"):
        import_folder(tmp_path / "hf", tmp_path / "ours")


def test_export_chooses_the_huggingface_class(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    for i, (heads, encoder, expected_class) in enumerate((
        (SentenceOrderMLM().heads(), {"num_hidden_groups": 2, "embedding_size": 8}, "AlbertForPreTraining"),
        ({"lm": LMHeadConfig()}, {"embedding_size": 8}, "AlbertForMaskedLM"),
        ({"rtd": DiscriminatorHeadConfig()}, {"embedding_size": 8}, "ElectraForPreTraining"),
        ({"rtd": DiscriminatorHeadConfig()}, {}, "ElectraForPreTraining"),
        ({"lm": LMHeadConfig()}, {"num_hidden_groups": 5}, "BertForMaskedLM"),
        ({}, {"pooler_act": "tanh"}, "BertModel"),
    )):  # fmt: skip
        config = ModelConfig(encoder=from_dict(EncoderConfig, {**SMALL, **encoder}), vocab_size=len(tokenizer), heads=heads)
        checkpoint.save(tmp_path / f"{i}", build_model(config, 0), tokenizer, {}, {"stage": "test"})
        result = run_stage("export", model=tmp_path / f"{i}", out=tmp_path / f"hf-{i}", check=True)
        assert result["class"] == expected_class and max(result["differences"].values()) < 1e-5
    # no family has these with both heads; one head is left out
    expected_classes = ("AlbertForMaskedLM", "BertForMaskedLM")
    for i, encoder in enumerate(({"num_hidden_groups": 2, "embedding_size": 8}, {"pooler_act": "relu"})):
        config = ModelConfig(
            encoder=from_dict(EncoderConfig, {**SMALL, **encoder}), vocab_size=len(tokenizer), heads=NextSentenceMLM().heads()
        )
        checkpoint.save(tmp_path / f"no-{i}", build_model(config, 0), tokenizer, {}, {"stage": "test"})
        result = run_stage("export", model=tmp_path / f"no-{i}", out=tmp_path / f"code-{i}", check=True)
        assert result["class"] == expected_classes[i] and max(result["differences"].values()) < 1e-5
