"""Longformer against transformers: hidden states, import and export."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from bertsmith.config import from_dict
from bertsmith.convert.huggingface.config import longformer_mixer_values
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.huggingface_models import VOCAB_SIZE, import_folder, run_stage, save_random_model, transformers

LENGTHS = (17, 5, 60, 1, 23)
GLOBAL_TOKENS = {"none": [], "first": None, "explicit": [0, 1, 17, 22, 25, 26, 27, 60, 83]}


@pytest.mark.parametrize("global_tokens", GLOBAL_TOKENS.values(), ids=GLOBAL_TOKENS)
@pytest.mark.parametrize("window", [6, 8, [4, 30], 256])
def test_longformer_hidden_states_match_transformers(window, global_tokens, tmp_path):
    original = save_random_model("LongformerModel", tmp_path / "hf", attention_window=window)
    _, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours")
    layout = Layout.from_lengths(
        LENGTHS, global_tokens=global_tokens if global_tokens is None else torch.tensor(global_tokens, dtype=torch.long)
    )
    tokens = torch.randint(5, VOCAB_SIZE, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    global_mask = torch.zeros_like(tokens).index_fill(0, layout.global_tokens, 1)
    hidden_states = []
    model(Inputs(tokens, layout), hidden_states)
    expected = original(
        layout.pad(tokens), attention_mask=layout.padding_mask().long(), global_attention_mask=layout.pad(global_mask),
        output_hidden_states=True,
    ).hidden_states  # fmt: skip
    for state, expected_state in zip(hidden_states, expected, strict=True):
        assert_close(state, expected_state[layout.padding_mask()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("window", "windows"), [([4, 8], (4, 8)), (6, (6,)), ([6, 6], (6,))])
def test_longformer_import_export_round_trip(window, windows, tmp_path):
    save_random_model("LongformerForMaskedLM", tmp_path / "hf", attention_window=window)
    result, model, _ = import_folder(tmp_path / "hf", tmp_path / "ours", check=True)
    assert model.config.encoder.mixer.attention_window == windows and max(result["differences"].values()) < 1e-5
    assert run_stage("export", model=tmp_path / "ours", out=tmp_path / "back")["class"] == "LongformerForMaskedLM"
    original, exported = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "back"))
    assert original.keys() == exported.keys() and all(torch.equal(original[key], exported[key]) for key in original)
    assert json.loads((tmp_path / "back/config.json").read_text())["attention_window"] == list(windows * 2)[:2]


def test_longformer_export_of_native_model(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    small = {"num_hidden_layers": 2, "hidden_size": 32, "feedforward": {"intermediate_size": 40}, "max_position_embeddings": 70}
    for i, overrides in enumerate(({}, {"dilation": [2]}, {"causal": True})):
        mixer = {"kind": "longformer", "num_attention_heads": 4, "attention_window": [10], **overrides}
        encoder = from_dict(EncoderConfig, {**small, "mixer": mixer})
        config = ModelConfig(encoder=encoder, vocab_size=len(tokenizer), heads={"lm": LMHeadConfig()})
        checkpoint.save(tmp_path / f"{i}", build_model(config, 0), tokenizer, {}, {"stage": "test"})
        recipe = {"model": tmp_path / f"{i}", "out": tmp_path / f"hf-{i}", "check": True}
        if overrides:
            with pytest.raises(UserError):
                run_stage("export", **recipe)
        else:
            result = run_stage("export", **recipe)
            assert result["class"] == "LongformerForMaskedLM" and max(result["differences"].values()) < 1e-5


@pytest.mark.parametrize(
    ("mixer", "heads", "message"),
    [
        ({"kind": "reformer"}, ("lm",), "does not support mixer=reformer"),
        ({"kind": "adaptive-span"}, ("lm",), "does not support mixer=adaptive-span"),
        (
            {"kind": "longformer", "attention_window": [10], "rope_theta": 100.0},
            ("lm",),
            "does not support mixer=longformer with global_attention",
        ),
    ],
)
def test_longformer_export_names_unsupported_parts(mixer, heads, message, tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    small = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "feedforward": {"intermediate_size": 40},
        "max_position_embeddings": 70,
        "mixer": {"num_attention_heads": 4, **mixer},
    }
    all_heads = {"lm": LMHeadConfig()}
    config = ModelConfig(
        encoder=from_dict(EncoderConfig, small), vocab_size=len(tokenizer), heads={name: all_heads[name] for name in heads}
    )
    checkpoint.save(tmp_path / "ours", build_model(config, 0), tokenizer, {}, {"stage": "test"})
    with pytest.raises(UserError, match=message):
        run_stage("export", model=tmp_path / "ours", out=tmp_path / "hf")


def test_longformer_base_has_published_size():
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=EncoderConfig.presets()["longformer-base"], vocab_size=50_265))
        options = {"vocab_size": 50_265, "max_position_embeddings": 4098, "type_vocab_size": 1}
        reference = transformers.LongformerModel(transformers.LongformerConfig(**options))
    num_parameters, num_reference = (sum(weight.numel() for weight in module.parameters()) for module in (model, reference))
    assert num_parameters == num_reference - 2 * 768  # padding rows of the position table, which ours does not have


def test_longformer_original_config_dilation_and_causality():
    config = {"attention_window": [4, 4, 8], "attention_dilation": [1, 2, 2], "autoregressive": True}
    expected = {
        "mixer.attention_window": [4, 4, 8],
        "mixer.causal": True,
        "mixer.dilation": [2, 2, 2, 2],
        "mixer.dilated_layers": 2,
    }
    assert longformer_mixer_values(config, 3, 4, "config.json") == expected


@pytest.mark.parametrize(("config", "message"), [
    ({"attention_window": 5}, "attention_window = 5; it must be even"),
    ({"attention_window": [4, 4]}, "neither a number nor a list of 3 numbers"),
    ({"attention_dilation": [2, 1, 2]}, "only the top layers can be dilated"),
    ({"attention_dilation": [1, 2, 3]}, "only the top layers can be dilated"),
])  # fmt: skip
def test_longformer_refuses_unsupported_windows(config, message):
    with pytest.raises(UserError, match=message):
        longformer_mixer_values(config, 3, 4, "config.json")
