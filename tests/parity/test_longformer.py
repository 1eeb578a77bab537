"""Windows and anchors are what transformers' Longformer makes of them."""

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
from bertsmith.model.heads import LMHeadConfig, PooledHeadConfig
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.parity.huggingface_models import WORDS, imported, run, theirs, transformers

LENGTHS = (17, 5, 60, 1, 23)
CHOSEN = {"none": [], "firsts": None, "chosen": [0, 1, 17, 22, 25, 26, 27, 60, 83]}


@pytest.mark.parametrize("anchors", CHOSEN.values(), ids=CHOSEN)
@pytest.mark.parametrize("window", [6, 8, [4, 30], 256])
def test_every_layer_is_that_of_transformers(window, anchors, tmp_path):
    original = theirs("LongformerModel", tmp_path / "hf", attention_window=window)
    _, model, _ = imported(tmp_path / "hf", tmp_path / "ours")
    layout = Layout.from_lengths(LENGTHS, global_tokens=anchors if anchors is None else torch.tensor(anchors, dtype=torch.long))
    tokens = torch.randint(5, WORDS, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    marked = torch.zeros_like(tokens).index_fill(0, layout.global_tokens, 1)
    kept = []
    model(Inputs(tokens, layout), kept)
    want = original(
        layout.pad(tokens), attention_mask=layout.padding_mask().long(), global_attention_mask=layout.pad(marked),
        output_hidden_states=True,
    ).hidden_states  # fmt: skip
    for ours, peer in zip(kept, want, strict=True):
        assert_close(ours, peer[layout.padding_mask()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("window", "reach"), [([4, 8], (2, 4)), (6, (3,)), ([6, 6], (3,))])
def test_windows_come_and_go(window, reach, tmp_path):
    theirs("LongformerForMaskedLM", tmp_path / "hf", attention_window=window)
    result, model, _ = imported(tmp_path / "hf", tmp_path / "ours", check=True)
    assert model.config.encoder.mixer.reach == reach and max(result["differences"].values()) < 1e-5
    assert run("export", model=tmp_path / "ours", out=tmp_path / "back")["class"] == "LongformerForMaskedLM"
    given, back = (load_file(tmp_path / place / "model.safetensors") for place in ("hf", "back"))
    assert given.keys() == back.keys() and all(torch.equal(given[key], back[key]) for key in given)
    assert json.loads((tmp_path / "back/config.json").read_text())["attention_window"] == [2 * one for one in (reach * 2)[:2]]


def test_our_own_window_goes_out_as_a_longformer_if_a_longformer_can_be_it(tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    small = {"layers": 2, "width": 32, "feedforward": {"inner": 40}, "positions": 70}
    for number, more in enumerate(({}, {"dilation": [2]}, {"causal": True}, {"anchors": False})):
        mixer = {"kind": "window", "heads": 4, "reach": [5], **more}
        encoder = from_dict(EncoderConfig, {**small, "mixer": mixer})
        config = ModelConfig(encoder=encoder, vocabulary=len(tokenizer), heads={"words": LMHeadConfig()})
        checkpoint.save(tmp_path / f"{number}", build_model(config, 0), tokenizer, {}, {"stage": "test"})
        recipe = {"model": tmp_path / f"{number}", "out": tmp_path / f"hf-{number}", "check": True}
        if more:
            with pytest.raises(UserError):
                run("export", **recipe)
        else:
            result = run("export", **recipe)
            assert result["class"] == "LongformerForMaskedLM" and max(result["differences"].values()) < 1e-5


@pytest.mark.parametrize(("mixer", "heads", "said"), [
    ({"kind": "window", "reach": [5]}, ("words", "next"), "has the heads next, words; Hugging Face's longformer has a place"),
    ({"kind": "hashed"}, ("words",), "Hugging Face's bert has no mixer=hashed"),
    ({"kind": "adaptive"}, ("words",), "Hugging Face's bert has no mixer=adaptive"),
    ({"kind": "window", "reach": [5], "rotary": 100.0}, ("words",), "Hugging Face's longformer cannot say mixer.rotary"),
])  # fmt: skip
def test_what_cannot_go_out_is_named(mixer, heads, said, tmp_path, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    small = {"layers": 2, "width": 32, "feedforward": {"inner": 40}, "positions": 70, "mixer": {"heads": 4, **mixer}}
    both = {"words": LMHeadConfig(), "next": PooledHeadConfig(labels=2)}
    config = ModelConfig(
        encoder=from_dict(EncoderConfig, small), vocabulary=len(tokenizer), heads={name: both[name] for name in heads}
    )
    checkpoint.save(tmp_path / "ours", build_model(config, 0), tokenizer, {}, {"stage": "test"})
    with pytest.raises(UserError, match=said):
        run("export", model=tmp_path / "ours", out=tmp_path / "hf")


def test_the_published_size_of_the_base_model():
    with torch.device("meta"):
        model = Model(ModelConfig(encoder=EncoderConfig.presets["longformer-base"], vocabulary=50_265))
        sizes = {"vocab_size": 50_265, "max_position_embeddings": 4098, "type_vocab_size": 1}
        peer = transformers.LongformerModel(transformers.LongformerConfig(**sizes))
    ours, others = (sum(weight.numel() for weight in one.parameters()) for one in (model, peer))
    assert ours == others - 2 * 768  # positions before the first, which nothing has


def test_what_its_authors_config_says_of_dilation_and_direction_is_heard():
    config = {"attention_window": [4, 4, 8], "attention_dilation": [1, 2, 2], "autoregressive": True}
    told = {"mixer.reach": [2, 2, 4], "mixer.causal": True, "mixer.dilation": [2, 2, 2, 2], "mixer.dilated": 2}
    assert longformer_mixer_values(config, 3, 4, "config.json") == told


@pytest.mark.parametrize(("config", "said"), [
    ({"attention_window": 5}, "attention_window = 5, which has no two halves"),
    ({"attention_window": [4, 4]}, "not a number or one for each of its 3 layers"),
    ({"attention_dilation": [2, 1, 2]}, "dilates its top layers"),
    ({"attention_dilation": [1, 2, 3]}, "dilates its top layers"),
])  # fmt: skip
def test_windows_that_our_mixer_cannot_have_are_refused(config, said):
    with pytest.raises(UserError, match=said):
        longformer_mixer_values(config, 3, 4, "config.json")
