"""`bertsmith export format=onnx` and `openvino`: a folder that onnxruntime, OpenVINO and transformers open, or none."""

import json

import msgspec
import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.artifacts import verify_manifest
from bertsmith.config import to_dict
from bertsmith.convert.onnx import check, folder
from bertsmith.model import checkpoint
from bertsmith.model.heads.embedding import EMBEDDING_HEAD, DenseConfig, EmbeddingHeadConfig
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.tasks import TextClassification
from tests.support.cli import run_cli_error, run_cli_json
from tests.support.models import BERT_ENCODER, TASKS, TOKENIZER, save_model
from tests.support.onnx_graphs import build_encoder, run_session
from tests.support.texts import VOCAB

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install bertsmith[export]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install bertsmith[export]")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")

TEMPERATURE = 1.7
TASK = TextClassification(labels=("bad", "good", "so-so"), temperature=TEMPERATURE)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / "classify", TASK)


@pytest.fixture(scope="module")
def exported(source):
    out = source.with_name("onnx")
    return out, run_cli_json("export", f"model={source}", "format=onnx", f"out={out}")


def random_texts():
    rng = np.random.default_rng(0)
    return [(rng.integers(0, len(VOCAB), n), np.zeros(n, np.int64)) for n in (7, 1, 30)]


def test_onnx_folder_is_checked_sealed_and_small(exported):
    out, result = exported
    assert result["differences"]["model"].keys() == {"last_hidden_state", "sentence_embedding", "logits"}
    assert max(result["differences"]["model"].values()) < 1e-4
    verify_manifest(out)
    assert (out / "model.onnx").stat().st_size < 200_000  # the weights are in model.safetensors alone
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "card.json", "README.md", "modules.json"} <= names


def test_onnxruntime_opens_the_file_and_gives_calibrated_logits(source, exported):
    outputs = run_session(ort.InferenceSession(exported[0] / "model.onnx"), texts := random_texts())
    model, _, _ = checkpoint.load(source)
    with torch.inference_mode():
        expected = check.compute_outputs(model, TASK, check.Texts(*map(list, zip(*texts, strict=True))))
    np.testing.assert_allclose(outputs["logits"], expected["logits"] / TEMPERATURE, atol=1e-4)
    np.testing.assert_allclose(outputs["last_hidden_state"], expected["last_hidden_state"], atol=1e-4)


def test_folder_is_a_checkpoint_with_the_same_answers(source, exported):
    ours, theirs = (bertsmith.load(folder)("the way people were made")["scores"] for folder in (source, exported[0]))
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_transformers_reads_config_and_tokenizer(exported):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(exported[0])
    assert config.id2label == dict(enumerate(TASK.labels)) and config.hidden_size == 32
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported[0])
    with_specials = bertsmith.load(exported[0]).hidden_states("the way people were made").tokens
    assert tokenizer("the way people were made").tokens() == with_specials


def test_second_export_of_the_same_model_changes_nothing(source, exported):
    times = {path: path.stat().st_mtime_ns for path in exported[0].iterdir()}
    assert run_cli_json("export", f"model={source}", "format=onnx", f"out={exported[0]}") == exported[1]
    assert times == {path: path.stat().st_mtime_ns for path in exported[0].iterdir()}


@pytest.fixture
def traced(exported, monkeypatch):
    """The graph of the exported folder instead of tracing the same model again."""
    proto = onnx.load(exported[0] / "model.onnx", load_external_data=False)
    monkeypatch.setattr(folder, "build_graph", lambda *_, **__: proto)


def test_graph_that_differs_is_not_written(source, tmp_path, monkeypatch, traced):
    monkeypatch.setattr(check, "TOLERANCE", 1e-12)
    message = run_cli_error("export", f"model={source}", "format=onnx", f"out={tmp_path / 'out'}")
    assert "the exported graph differs from the model" in message and "nothing was written" in message
    assert not list(tmp_path.iterdir())


def test_missing_package_is_named_before_the_work(source, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "find_spec", lambda name: None if name == "onnxscript" else object())
    message = run_cli_error("export", f"model={source}", "format=onnx", f"out={tmp_path / 'out'}")
    assert "format=onnx needs onnxscript: pip install 'bertsmith[export,onnx]'" in message


def test_openvino_folder_has_its_own_weights(source, tmp_path, traced):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    out = tmp_path / "openvino"
    result = run_cli_json("export", f"model={source}", "format=openvino", f"out={out}")
    assert max(result["differences"]["model"].values()) < 1e-4
    assert {path.suffix for path in out.iterdir()} >= {".xml", ".bin"} and not list(out.glob("model.*"))
    verify_manifest(out)


def test_labels_stay_in_the_config_and_the_temperature_is_used_up(exported):
    task = json.loads((exported[0] / "config.json").read_text())["task"]
    assert task["labels"] == list(TASK.labels) and task["temperature"] == 1.0


@pytest.mark.slow
def test_sentence_embeddings_are_normalized_as_the_task_says(tmp_path):
    source = save_model(tmp_path / "model", msgspec.structs.replace(TASKS["similar"], pooling="cls", normalize=True))
    result = run_cli_json("export", f"model={source}", "format=onnx", f"out={tmp_path / 'onnx'}")
    assert result["differences"]["model"]["sentence_embedding"] < 1e-4
    embedding = run_session(ort.InferenceSession(tmp_path / "onnx" / "model.onnx"), random_texts())["sentence_embedding"]
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), 1, atol=1e-5)
    modules = json.loads((tmp_path / "onnx" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]


@pytest.fixture(scope="module")
def wide_source(tmp_path_factory):
    """A model with layers that are worth quantizing."""
    encoder = build_encoder(hidden_size=64, feedforward=FeedForwardConfig(intermediate_size=128))
    return save_model(tmp_path_factory.mktemp("wide") / "classify", TASK, encoder)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_int8_folder_answers_alone_and_nearly_as_the_model(wide_source, kind):
    pytest.importorskip("openvino")
    out = wide_source.with_name(f"int8-{kind}")
    result = run_cli_json("export", f"model={wide_source}", f"format={kind}", "precision=int8", f"out={out}")
    assert result["cosine"]["mean"] >= 0.99 and result["cosine"]["lowest"] <= result["cosine"]["mean"] <= 1
    verify_manifest(out)
    assert not list(out.glob("*.safetensors"))
    graph = out / ("model.onnx" if kind == "onnx" else "openvino_model.xml")
    assert (b"DynamicQuantizeMatMul" if kind == "onnx" else b"FakeQuantize") in graph.read_bytes()


def test_int8_of_layers_that_are_too_small_is_refused(source, tmp_path):
    message = run_cli_error("export", f"model={source}", "format=onnx", "precision=int8", f"out={tmp_path / 'out'}")
    assert "no linear layers" in message and not (tmp_path / "out").exists()


def test_precision_applies_to_graphs_only(source, tmp_path):
    message = run_cli_error("export", f"model={source}", "precision=int8", f"out={tmp_path / 'out'}")
    assert "precision=int8 applies to graphs" in message


def test_dense_layers_after_the_pooling_are_in_the_graph_and_beside_it(tmp_path):
    source, head = tmp_path / "model", EmbeddingHeadConfig(layers=(DenseConfig(out_features=12),))
    config = ModelConfig(encoder=BERT_ENCODER, vocab_size=len(TOKENIZER), heads={EMBEDDING_HEAD: head})
    checkpoint.save(source, build_model(config, 0), TOKENIZER, {}, {"task": to_dict(TASKS["similar"]), "max_length": 48})
    run_cli_json("export", f"model={source}", "format=onnx", f"out={tmp_path / 'onnx'}")
    texts = random_texts()
    embedding = run_session(ort.InferenceSession(tmp_path / "onnx" / "model.onnx"), texts)["sentence_embedding"]
    expected = bertsmith.load(source, precision="fp32").engine.embed([ids for ids, _ in texts], "mean")
    assert expected.shape == (3, 12) and (tmp_path / "onnx" / "2_Dense" / "model.safetensors").exists()
    np.testing.assert_allclose(embedding, expected, atol=1e-5)
    graphs = bertsmith.load(tmp_path / "onnx", backend="onnx")
    words = ["the people made a way", "one", "it was not there " * 9]
    assert graphs.embedding_size == 12
    np.testing.assert_allclose(graphs.embed(words), bertsmith.load(source, precision="fp32").embed(words), atol=1e-5)
