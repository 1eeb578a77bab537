"""ModernBERT's folders, in and out: options of its config.json, both of its spellings, and models of our own shape.

`test_huggingface.py` and `test_huggingface_tasks.py` take every class of the family through import and export.
"""

import json

import msgspec
import pytest
import torch
from safetensors.torch import load_file

import bertsmith
from bertsmith.config import to_dict
from bertsmith.convert.huggingface.modernbert import DEFAULTS
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.presets import PRESETS, modernbert
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import TextClassification
from tests.support.huggingface_models import import_folder, run_stage, save_random_model, transformers
from tests.support.models import TASKS, TOKENIZER

OLDER = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
NEWER = ("layer_types", "rope_parameters")
FULL, SLIDING = "full_attention", "sliding_attention"


def thetas(full, sliding):
    return {FULL: {"rope_type": "default", "rope_theta": full}, SLIDING: {"rope_type": "default", "rope_theta": sliding}}


OPTIONS = {
    "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
    "no-decoder-bias": {"decoder_bias": False},
    "full": {"layer_types": [FULL] * 4, "rope_parameters": thetas(500.0, 20.0)},
    "first-full": {"layer_types": [FULL, SLIDING, SLIDING, SLIDING], "rope_parameters": thetas(500.0, 20.0)},
    "every-second": {"layer_types": [FULL, SLIDING, FULL, SLIDING], "local_attention": 6, "norm_eps": 1e-3},
    "silu": {"hidden_activation": "silu", "classifier_activation": "silu"},
}


def roundtrip(folder, name, **settings):
    """A random model of transformers, imported and exported again: the results of both stages."""
    save_random_model(name, folder / "hf", **settings)
    imported = import_folder(folder / "hf", folder / "ours", check=True)
    return imported, run_stage("export", model=folder / "ours", out=folder / "back", check=True)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["ModernBertForMaskedLM", "ModernBertForSequenceClassification"])
def test_options_of_modernbert_come_and_go_bit_for_bit(name, options, tmp_path):
    (imported, _, _), exported = roundtrip(tmp_path, name, **OPTIONS[options])
    assert max(*imported["differences"].values(), *exported["differences"].values()) < 1e-5
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    configs = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("hf", "back")]
    keys = ["layer_types", "classifier_bias", "hidden_activation", "norm_eps"]
    keys += ["decoder_bias"] if name.endswith("MaskedLM") else []
    keys += ["local_attention"] if SLIDING in configs[0]["layer_types"] else []
    assert [configs[1].get(key) for key in keys] == [configs[0].get(key) for key in keys]
    for layer_type in set(configs[0]["layer_types"]):
        assert configs[1]["rope_parameters"][layer_type] == configs[0]["rope_parameters"][layer_type]


@pytest.mark.parametrize("spelling", [OLDER, NEWER])
def test_either_spelling_is_read_by_us_and_by_transformers(spelling, tmp_path):
    settings = {"layer_types": [FULL, SLIDING, FULL, SLIDING], "rope_parameters": thetas(700.0, 30.0)}
    roundtrip(tmp_path, "ModernBertForMaskedLM", **settings)
    path = tmp_path / "back" / "config.json"
    (tmp_path / "back" / "manifest.json").unlink()  # the folder is changed on purpose
    config = json.loads(path.read_text())
    assert [config[key] for key in OLDER] == [2, 700.0, 30.0]
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in {*OLDER, *NEWER} - {*spelling}}))
    reloaded = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "back").eval()
    result, again, _ = import_folder(tmp_path / "back", tmp_path / "again", check=True)
    assert max(result["differences"].values()) < 1e-5
    assert again.config == checkpoint.load(tmp_path / "ours")[0].config
    original = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.arange(5, 60)[None]
    assert torch.equal(reloaded(ids).logits, original(ids).logits)


def test_local_layers_see_their_window_only(tmp_path):
    """So the equalities above include the window: a change far away reaches a local layer through full layers alone."""
    (_, model, _), _ = roundtrip(tmp_path, "ModernBertModel", layer_types=[FULL, SLIDING, SLIDING, SLIDING])
    assert [layer.mixer.half_window for layer in model.encoder.stack.layers[1:]] == [4, 4, 4]
    reference = transformers.ModernBertModel.from_pretrained(tmp_path / "hf", attn_implementation="eager").eval()
    ids = torch.randint(5, 100, (1, 60), generator=torch.Generator().manual_seed(0))
    weights = reference(ids, output_attentions=True).attentions[1][0, 0]
    distance = (torch.arange(60) - torch.arange(60)[:, None]).abs()
    assert torch.equal(weights > 0, distance <= 4)


@pytest.mark.parametrize("task", [name for name in TASKS if name != "similar"])
def test_our_modernbert_leaves_as_one(task, tmp_path):
    """A model of the preset's shape, fine-tuned here, needs no code beside it."""
    encoder = msgspec.structs.replace(modernbert(4, 64, 48), initializer_range=0.1, max_position_embeddings=48)
    heads = build_task_objective(TASKS[task]).heads()
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads=heads), 1)
    record = {"task": to_dict(TASKS[task]), "max_length": 48}
    checkpoint.save(tmp_path / "ours", model, TOKENIZER, {}, record)
    result = run_stage("export", model=tmp_path / "ours", out=tmp_path / "hf", check=True)
    assert result["family"] == "modernbert" and max(result["differences"].values()) < 1e-5
    _, back, _ = import_folder(tmp_path / "hf", tmp_path / "back")
    assert back.config == model.config
    assert all(torch.equal(weight, back.state_dict()[name]) for name, weight in model.state_dict().items())


def test_our_classifier_answers_with_its_probabilities_in_transformers(tmp_path):
    encoder = msgspec.structs.replace(modernbert(3, 64, 48), initializer_range=0.1, pooling="mean", max_position_embeddings=48)
    task = TextClassification(labels=("bad", "good"), temperature=2.0)
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads=build_task_objective(task).heads()), 1)
    checkpoint.save(tmp_path / "ours", model, TOKENIZER, {}, {"task": to_dict(task), "max_length": 48})
    run_stage("export", model=tmp_path / "ours", out=tmp_path / "hf")
    pipe = transformers.pipeline("text-classification", str(tmp_path / "hf"), device="cpu")
    for text in ("the people made a way", "one"):
        theirs = {row["label"]: row["score"] for row in pipe(text, top_k=None)}
        assert theirs == pytest.approx(bertsmith.load(tmp_path / "ours")(text)["scores"], abs=1e-5)


def test_a_trained_bias_of_the_head_is_exported(tmp_path):
    encoder = msgspec.structs.replace(modernbert(3, 64, 48), initializer_range=0.1, max_position_embeddings=48)
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads={"lm": LMHeadConfig()}), 1)
    with torch.no_grad():
        model.heads["lm"].transform.bias[3] = 0.5
    checkpoint.save(tmp_path / "ours", model, TOKENIZER, {}, {})
    result = run_stage("export", model=tmp_path / "ours", out=tmp_path / "hf", check=True)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["classifier_bias"] is True
    assert result["class"] == "ModernBertForMaskedLM" and max(result["differences"].values()) < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": [SLIDING, FULL, FULL, FULL]}, "full attention in every n-th layer"),
        ({"layer_types": [FULL]}, "for each layer"),
        ({"layer_types": None, "global_attn_every_n_layers": 0}, "global_attn_every_n_layers = 0"),
        ({"rope_parameters": {FULL: {"rope_type": "yarn", "factor": 2.0}}}, "scales RoPE"),
        ({"rope_parameters": {FULL: {"rope_theta": -1}}}, "rope_theta = -1"),
        ({"local_attention": 1}, "local_attention = 1"),
        ({"classifier_activation": "silu"}, "classifier_activation = 'silu'"),
        ({"classifier_pooling": "max"}, "classifier_pooling = 'max'"),
    ],
)
def test_what_we_do_not_have_is_refused_by_name(change, message, tmp_path):
    save_random_model("ModernBertForMaskedLM", tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        import_folder(tmp_path / "hf", tmp_path / "ours")


def test_defaults_are_those_of_transformers():
    config = transformers.ModernBertConfig()
    for name, value in DEFAULTS.items():
        if name not in OLDER:
            assert getattr(config, name) == value, name
    assert config.layer_types == [SLIDING if layer % DEFAULTS[OLDER[0]] else FULL for layer in range(22)]
    expected = thetas(DEFAULTS["global_rope_theta"], DEFAULTS["local_rope_theta"])
    assert {name: config.rope_parameters[name]["rope_theta"] for name in expected} == {
        name: values["rope_theta"] for name, values in expected.items()
    }


def test_presets_have_the_published_sizes():
    for preset, name in (("modernbert-base", 149_014_272), ("modernbert-large", 394_781_696)):
        with torch.device("meta"):
            model = build_model(ModelConfig(encoder=PRESETS[preset], vocab_size=50368, heads={}), 0)
        assert sum(weight.numel() for weight in model.parameters()) == name
