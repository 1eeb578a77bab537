"""Encoders that no class of transformers has, exported with their code: outputs, probabilities and gradients equal ours."""

import ast
import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch.testing import assert_close

import bertsmith
from bertsmith.commands import load_stage
from bertsmith.config import to_dict
from bertsmith.convert.huggingface import custom_code
from bertsmith.convert.huggingface import modeling_bertsmith as code
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig, LayerSizes, LayerTypes
from bertsmith.model.heads import LMHeadConfig, PooledHeadConfig
from bertsmith.model.mixers import Attention, Longformer, Lstm
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.position_bias import AlibiConfig, ShawConfig, T5BiasConfig
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import TextClassification
from bertsmith.tasks.requests import parse_requests
from tests.support.huggingface_models import import_folder, run_stage, transformers
from tests.support.models import TASKS, TOKENIZER

TEXTS = ["The people made a way, and then they saw it.", "one", "it was not there when we could see out"]
BASE = EncoderConfig(
    num_hidden_layers=3,
    hidden_size=32,
    mixer=Attention(num_attention_heads=2),
    feedforward=FeedForwardConfig(intermediate_size=48),
    max_position_embeddings=48,
    initializer_range=0.2,
)


def change(encoder=BASE, **settings):
    return msgspec.structs.replace(encoder, **settings)


def attention(**settings):
    return Attention(num_attention_heads=2, **settings)


LOCAL = Longformer(num_attention_heads=2, attention_window=(6,), global_attention=False, bias=False, rope_theta=100.0)
MINI = change(  # as mini-en
    embedding_size=20, mixer=attention(bias=False, rope_theta=10_000.0), norm="pre", norm_bias=False, layer_norm_eps=1e-6,
    feedforward=FeedForwardConfig(intermediate_size=48, glu=True, bias=False), position_embedding_type="none",
)  # fmt: skip
SHAPES = {
    "mini": MINI,
    "local": change(MINI, layer_types=LayerTypes(every=2, mixer=LOCAL), first_attention_norm=False, type_vocab_size=0),
    "head-transform": change(MINI, pooler_act="none", head_transform=True),
    "dilated": change(mixer=msgspec.structs.replace(LOCAL, dilation=(2,), dilated_layers=1), position_embedding_type="none"),
    "alibi": change(mixer=attention(position_bias=AlibiConfig()), position_embedding_type="none"),
    "t5": change(mixer=attention(position_bias=T5BiasConfig(num_buckets=8)), position_embedding_type="none", pooling="mean"),
    "t5-by-layer": change(mixer=attention(position_bias=T5BiasConfig(shared=False)), position_embedding_type="none"),
    "shaw": change(mixer=attention(position_bias=ShawConfig(clip=3)), position_embedding_type="none", pooling="max"),
    "sinusoidal": change(position_embedding_type="sinusoidal", scale_embeddings=True, embedding_norm=False, norm="pre"),
    "shared": change(MINI, num_hidden_groups=1, pooling="concat", type_vocab_size=1),
    "causal": change(MINI, mixer=attention(causal=True, rope_theta=100.0), embedding_size=None),
    "no-feedforward": change(feedforward=None, norm="pre"),
    "pruned": change(layer_sizes=LayerSizes((1, 2, 1), (8, 48, 20))),
    "pruned-mini": change(MINI, layer_sizes=LayerSizes(intermediate_size=(8, 40, 24)), mixer=attention(
        attention_head_size=6, bias=False, rope_theta=100.0)),
}  # fmt: skip


def save(folder, encoder, task=None, heads=None):
    """A random model as `pretrain` or `finetune` writes it."""
    heads = heads or (build_task_objective(task).heads() if task else {"lm": LMHeadConfig()})
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads=heads), 3)
    with torch.no_grad():  # so that norms and biases matter too
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.normal_(float("norm" in name and name.endswith("weight")), 0.2)
    checkpoint.save(folder, model, TOKENIZER, {}, {"task": to_dict(task), "max_length": 48} if task else {})
    return folder


@pytest.fixture
def modules_cache(tmp_path, monkeypatch):
    """Where transformers copies code that it trusts: not into the home of whoever runs the tests."""
    cache = tmp_path / "modules"
    cache.mkdir()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(cache))
    monkeypatch.setattr(sys, "path", [*sys.path, str(cache)])
    yield
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


def load_auto(folder, auto_class):
    return getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).eval()


def tokenize(folder, *texts, **options):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    return tokenizer(*texts, padding=True, return_tensors="pt", **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_our_outputs_and_comes_back_bit_for_bit(shape, tmp_path):
    source = save(tmp_path / "ours", SHAPES[shape])
    result = run_stage("export", model=source, out=tmp_path / "hf", check=True)
    assert result["class"] == ("BertsmithForCausalLM" if shape == "causal" else "BertsmithForMaskedLM")
    assert set(result["differences"]) == {"hidden", "lm"} and max(result["differences"].values()) < 1e-5
    back = import_folder(tmp_path / "hf", tmp_path / "back", check=True)[1]
    model = checkpoint.load(source)[0]
    assert back.config == model.config
    assert all(torch.equal(weight, back.state_dict()[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("task", [name for name in TASKS if name != "similar"])
@pytest.mark.parametrize("shape", ["mini", "head-transform", "shared", "causal"])
def test_every_head_gives_our_outputs_and_comes_back_with_its_task(task, shape, tmp_path):
    source = save(tmp_path / "ours", SHAPES[shape], TASKS[task])
    result = run_stage("export", model=source, out=tmp_path / "hf", check=True)
    assert max(result["differences"].values()) < 1e-5
    import_folder(tmp_path / "hf", tmp_path / "back")
    ours, back = bertsmith.load(source), bertsmith.load(tmp_path / "back")
    assert (back.task, back.max_length, back.model.config) == (ours.task, ours.max_length, ours.model.config)


def test_shapes_differ_where_the_code_must_follow():
    """So the equalities above include windows, rotations and biases: without them the outputs are others."""
    for shape, key in (("mini", "rope_theta"), ("alibi", "position_bias"), ("local", "layer_types"), ("causal", "causal")):
        record = to_dict(SHAPES[shape])
        other = json.loads(json.dumps(record))
        (other if key == "layer_types" else other["mixer"])[key] = None if key != "causal" else False
        models = []
        for encoder in (record, other):
            torch.manual_seed(0)
            models.append(code.BertsmithModel(code.BertsmithConfig({"model": {"encoder": encoder}}, len(TOKENIZER))).eval())
        if key != "layer_types":  # whose other layers have no weights of their own kind
            models[1].load_state_dict(models[0].state_dict())
        ids = torch.arange(5, 25)[None]
        with torch.no_grad():
            assert (models[0](ids).last_hidden_state - models[1](ids).last_hidden_state).abs().max() > 1e-2, shape


@pytest.mark.parametrize("side", ["right", "left"])
def test_classifier_has_our_calibrated_probabilities(side, tmp_path, modules_cache):
    task = TextClassification(labels=("bad", "good", "so"), temperature=1.7)
    source = save(tmp_path / "ours", MINI, task)
    run_stage("export", model=source, out=tmp_path / "hf")
    model = load_auto(tmp_path / "hf", "AutoModelForSequenceClassification")
    logits = model(**tokenize(tmp_path / "hf", TEXTS, padding_side=side)).logits
    ours = bertsmith.load(source)
    expected = [[answer["scores"][label] for label in task.labels] for answer in ours(TEXTS)]
    assert_close(logits.softmax(-1).double(), torch.tensor(expected).double(), atol=1e-5, rtol=0)
    assert model.config.id2label == dict(enumerate(task.labels))
    back = import_folder(tmp_path / "hf", tmp_path / "back")[0]
    assert back["task"] == "classify" and bertsmith.load(tmp_path / "back").task.temperature == 1
    for label, score in bertsmith.load(tmp_path / "back")("one")["scores"].items():
        assert score == pytest.approx(ours("one")["scores"][label], abs=1e-5)


def test_pipelines_answer_as_ours(tmp_path, modules_cache):
    tagger = save(tmp_path / "tagger", MINI, TASKS["tag"])
    run_stage("export", model=tagger, out=tmp_path / "hf-tag")
    pipe = transformers.pipeline("token-classification", str(tmp_path / "hf-tag"), trust_remote_code=True, device="cpu")
    words = "the people made a way"
    theirs = [(row["entity"], row["word"]) for row in pipe(words)]
    tag = bertsmith.load(tagger)
    examples, _ = parse_requests(tag.task, [{"tokens": words.split()}], None, {})
    logits = tag.compute_outputs(tag.task.encode(examples, tag.tokenizer, 48))[0]
    labels = [TASKS["tag"].labels[index] for index in logits.argmax(-1)][1:-1]
    assert theirs == [(label, word) for label, word in zip(labels, words.split(), strict=True) if label != "O"]

    lm = save(tmp_path / "lm", MINI)
    run_stage("export", model=lm, out=tmp_path / "hf-lm")
    fill = transformers.pipeline("fill-mask", str(tmp_path / "hf-lm"), trust_remote_code=True, device="cpu")
    ours, theirs = bertsmith.load(lm).fill("the [MASK] way", top_k=5), fill("the [MASK] way", top_k=5)
    assert [row["token"] for row in ours] == [row["token"] for row in theirs]
    np.testing.assert_allclose([row["score"] for row in ours], [row["score"] for row in theirs], atol=1e-5)


def test_exported_encoder_trains_in_transformers_with_our_gradients(tmp_path, modules_cache):
    source = save(tmp_path / "ours", MINI)
    run_stage("export", model=source, out=tmp_path / "hf")
    model, inputs = load_auto(tmp_path / "hf", "AutoModelForMaskedLM"), tokenize(tmp_path / "hf", TEXTS)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    model(**inputs, labels=labels).loss.backward()
    ours, mask = checkpoint.load(source)[0], inputs["attention_mask"].bool()
    packed = Inputs(inputs["input_ids"][mask], Layout.from_lengths(mask.sum(1).tolist()))
    (ours.cross_entropy("lm", ours(packed), labels[mask])[0] / mask.sum()).backward()
    theirs = dict(model.named_parameters())
    checked = 0
    for name, weight in ours.named_parameters():
        if weight.grad is not None and "pooler" not in name:
            grad = theirs[custom_code.RENAMED.get(name, name)].grad
            assert_close(grad, weight.grad, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
            checked += 1
    assert checked > 20


def test_new_heads_are_initialized_and_loaded_weights_are_left_alone(tmp_path, modules_cache):
    source = save(tmp_path / "ours", MINI)
    run_stage("export", model=source, out=tmp_path / "hf")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "hf", num_labels=3, trust_remote_code=True
    )
    weights = checkpoint.load(source)[0].state_dict()
    for name, weight in model.state_dict().items():
        if name.startswith("encoder."):
            assert torch.equal(weight, weights[name]), name
    head = model.heads["task"].classifier
    assert head.weight.shape == (3, 32) and 0 < head.weight.std() < 1 and not head.bias.any()
    model(**tokenize(tmp_path / "hf", TEXTS), labels=torch.tensor([0, 1, 2])).loss.backward()
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items())


def test_embeddings_can_be_resized_and_stay_tied(tmp_path, modules_cache):
    run_stage("export", model=save(tmp_path / "ours", MINI), out=tmp_path / "hf")
    model = load_auto(tmp_path / "hf", "AutoModelForMaskedLM")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.resize_token_embeddings(len(TOKENIZER) + 3)
    assert model(torch.tensor([[5, len(TOKENIZER) + 2]])).logits.shape == (1, 2, len(TOKENIZER) + 3)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_hidden_states_and_attentions_are_ours(tmp_path):
    source = save(tmp_path / "ours", SHAPES["local"])
    run_stage("export", model=source, out=tmp_path / "hf")
    model, inputs = code.BertsmithModel.from_pretrained(tmp_path / "hf").eval(), tokenize(tmp_path / "hf", TEXTS)
    outputs = model(**inputs, output_hidden_states=True, output_attentions=True)
    assert_close(outputs.last_hidden_state, model(**inputs).last_hidden_state, atol=1e-5, rtol=1e-5)
    ours = bertsmith.load(source)
    for number, (text, attentions) in enumerate(zip(TEXTS, ours.attentions(TEXTS), strict=True)):
        length = len(attentions.tokens)
        theirs = torch.stack([weights[number, :, :length, :length] for weights in outputs.attentions])
        np.testing.assert_allclose(theirs.detach().numpy(), attentions.weights, atol=1e-5)
        vectors = ours.hidden_states(text).vectors
        np.testing.assert_allclose(outputs.hidden_states[-1][number, :length].detach().numpy(), vectors, atol=1e-5)


def test_causal_model_generates_our_continuation(tmp_path, modules_cache):
    source = save(tmp_path / "ours", SHAPES["causal"])
    run_stage("export", model=source, out=tmp_path / "hf")
    model, inputs = load_auto(tmp_path / "hf", "AutoModelForCausalLM"), tokenize(tmp_path / "hf", "the people made")
    generated = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    ours = bertsmith.load(source).generate("the people made", max_new_tokens=6)
    assert generated.tolist()[: len(ours["token_ids"])] == list(ours["token_ids"])


def test_untied_output_embeddings_come_and_go(tmp_path):
    source = save(tmp_path / "ours", MINI, heads={"lm": LMHeadConfig(tied=False, bias=False)})
    result = run_stage("export", model=source, out=tmp_path / "hf", check=True)
    assert max(result["differences"].values()) < 1e-5
    weights, back = checkpoint.load(source)[0].state_dict(), import_folder(tmp_path / "hf", tmp_path / "back")[1]
    assert all(torch.equal(weight, weights[name]) for name, weight in back.state_dict().items())


def test_pretraining_heads_are_left_out_and_reported(tmp_path, capsys):
    heads = {"lm": LMHeadConfig(), "sop": PooledHeadConfig(labels=2)}
    source = save(tmp_path / "ours", MINI, heads=heads)
    stage = load_stage("export")
    stage.run(stage.Recipe(model=str(source), out=str(tmp_path / "hf")))
    output = "".join(capsys.readouterr())
    assert "heads.sop: not exported" in output and "modeling_bertsmith.py: the model's code, since" in output
    assert set(checkpoint.load(import_into(tmp_path))[0].config.heads) == {"lm"}


def import_into(folder):
    import_folder(folder / "hf", folder / "back")
    return folder / "back"


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (change(mixer=Lstm(), norm="none", position_embedding_type="none", feedforward=None), "mixer=lstm"),
        (change(MINI, mixer=Longformer(num_attention_heads=2, rope_theta=10.0)), "mixer=longformer with global_attention"),
        (change(MINI, mixer=attention(directions="apart"), embedding_size=None), "mixer.directions = apart"),
        (change(MINI, reversible=True, embedding_size=None), "model.reversible"),
    ],
)
def test_what_the_code_cannot_compute_is_refused_by_name(encoder, message, tmp_path):
    source = save(tmp_path / "ours", encoder)
    with pytest.raises(UserError, match=message):
        run_stage("export", model=source, out=tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_damaged_folder_is_refused(tmp_path):
    run_stage("export", model=save(tmp_path / "ours", MINI), out=tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "manifest.json").unlink()  # the folder is changed on purpose
    for record, message in (
        ({}, "has no bertsmith.model"),
        ({"model": {**config["bertsmith"]["model"], "vocab_size": 7}}, "does not match its config.json: .* has shape"),
        ({"model": {**config["bertsmith"]["model"], "heads": {}}}, "unexpected keys"),
    ):
        (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"bertsmith": record}))
        with pytest.raises(UserError, match=message):
            import_folder(tmp_path / "hf", tmp_path / "back")


def test_defaults_of_the_code_are_those_of_our_config():
    encoder = to_dict(EncoderConfig(initializer_range=0.02))
    for name, default in code.DEFAULT_ENCODER.items():
        if name not in ("mixer", "feedforward"):
            assert encoder[name] == default, name
    for defaults, values in ((code.DEFAULT_MIXER, encoder["mixer"]), (code.DEFAULT_FEEDFORWARD, encoder["feedforward"])):
        assert all(values.get(name, default) == default for name, default in defaults.items())
    assert code.DEFAULT_LM_HEAD.items() <= to_dict(LMHeadConfig()).items()


def test_code_imports_nothing_of_ours():
    tree = ast.parse(Path(custom_code.__file__).with_name(custom_code.MODELING_FILE).read_text())
    roots = {name.split(".")[0] for node in ast.walk(tree) for name in _imported(node)}
    assert roots == {"math", "types", "torch", "transformers"}


def _imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "."] if isinstance(node, ast.ImportFrom) else []
