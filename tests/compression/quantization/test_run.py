"""The stage `quantize`: every mode, the gate, killed and resumed runs, refusals, and what can be done with the folder."""

import pytest

pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install bertsmith[export]")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")

import onnx

import bertsmith
from bertsmith.artifacts import verify_manifest
from bertsmith.model.sublayers import FeedForwardConfig
from tests.support.cli import kill_cli_when_exists, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.onnx_graphs import build_encoder
from tests.support.rows import write_classification_files

ENCODER = build_encoder(hidden_size=64, feedforward=FeedForwardConfig(intermediate_size=128), max_position_embeddings=96)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantize")
    write_classification_files(folder, 120, 60)
    save_model(folder / "start", TASKS["classify"], ENCODER)
    run_cli_json("finetune", "task=classify", f"model={folder / 'start'}", f"data.train={folder / 'train.jsonl'}",
                 f"data.dev={folder / 'dev.jsonl'}", "train.steps=40",
                 "train.learning_rate=3e-3", f"out={folder / 'mood'}")  # fmt: skip
    save_model(folder / "bert", None, ENCODER)
    return folder


def data(folder):
    return [f"data.train={folder / 'train.jsonl'}", f"data.dev={folder / 'dev.jsonl'}"]


def quantize(folder, out, *words, model="mood"):
    return run_cli_json("quantize", f"model={folder / model}", f"out={folder / out}", *data(folder), *words)


def test_static_folder_answers_evaluates_and_is_exported(folder):
    result = quantize(folder, "static", "sensitivity=true")
    assert result["mode"] == "static" and result["int8_layers"] == 9 and result["float_layers"] == []
    assert result["before"]["bytes"] > 2.5 * result["after"]["bytes"] and result["kept"] >= 0.99
    assert [row["output_error"] > 0 for row in result["sensitivity"]] == [True] * 11
    low, high = result["score"]["after"]["confidence_interval"]
    assert low <= result["score"]["after"]["value"] <= high
    verify_manifest(folder / "static")
    answers = {}
    for backend in ("onnx", "torch"):
        model = bertsmith.load(folder / "static", backend=backend)
        answers[backend] = model(["people the", "water of", "the people said"])
    original = bertsmith.load(folder / "mood", backend="torch")(["people the", "water of", "the people said"])
    for ours in answers.values():
        assert [a["label"] for a in ours] == [a["label"] for a in original]
    scores = run_cli_json("evaluate", f"model={folder / 'static'}", f"data={folder / 'dev.jsonl'}", f"out={folder / 'report'}")
    assert scores["scores"]["accuracy"] == pytest.approx(result["dev"]["accuracy"])
    exported = run_cli_json("export", f"model={folder / 'static'}", "format=hf", "check=true", f"out={folder / 'hf'}")
    assert max(exported["differences"].values()) < 1e-5
    again = quantize(folder, "static", "sensitivity=true")
    assert not again["created"] and again["score"] == result["score"]


def test_dynamic_without_data_is_calibrated_on_drawn_ids(folder):
    result = run_cli_json("quantize", f"model={folder / 'bert'}", "embedding_bits=4", "gate=0.9", f"out={folder / 'drawn'}")
    assert result["mode"] == "dynamic" and result["quality"]["cosine"] > 0.9 and result["speed"]["speedup"] > 0
    model = bertsmith.load(folder / "drawn", backend="onnx")
    assert model.embed(["the people"]).shape == (1, 64)


QAT = ["mode=qat", "train.batch_tokens=128", "train.log_every=4", "gate=0.9"]


def test_training_learns_ranges_that_the_graph_has(folder):
    quantize(folder, "static", "sensitivity=true")
    result = quantize(folder, "qat", *QAT, "train.steps=12")
    assert result["mode"] == "qat" and result["step"] == 12 and result["kept"] >= 0.9
    verify_manifest(folder / "qat")
    assert not (folder / "qat" / "state").exists() and (folder / "qat" / "metrics.jsonl").exists()
    graphs = {name: onnx.load(folder / name / "model.onnx", load_external_data=False).graph for name in ("qat", "static")}
    steps = {
        name: [float(onnx.numpy_helper.to_array(t)) for t in graph.initializer if t.name.endswith(".step")]
        for name, graph in graphs.items()
    }
    assert len(steps["qat"]) == len(steps["static"]) == 9 and steps["qat"] != steps["static"]
    assert bertsmith.load(folder / "qat", backend="onnx")("people the")["label"] in ("good", "bad")


@pytest.mark.slow
def test_killed_training_ends_with_the_same_weights(folder):
    words = ["quantize", f"model={folder / 'mood'}", *data(folder), *QAT, "train.steps=30", "train.save_every=4"]
    killed = folder / "killed"
    kill_cli_when_exists(*words, f"out={killed}", until=killed / "state" / "step-4")
    for out in ("killed", "whole"):
        run_cli_json(*words, f"out={folder / out}")
    files = ("model.safetensors", "model.onnx")
    assert all((folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes() for name in files)


def test_what_is_worse_than_the_gate_is_not_written(folder):
    words = ("mode=static", "percentile=60", "gate=0.9999", "--quiet", f"out={folder / 'ruined'}")
    message = run_cli_error("quantize", f"model={folder / 'bert'}", *words)
    assert "gate=0.9999: mean cosine of sentence embeddings 0." in message and "nothing was written" in message
    assert "mode=qat" in message and "The largest errors of outputs come from encoder.stack" in message
    assert not (folder / "ruined").exists()


def test_layers_that_hurt_stay_in_float32(folder):
    result = run_cli_json("quantize", f"model={folder / 'bert'}", "embedding_bits=4", "gate=0.9995", f"out={folder / 'kept'}")
    assert result["float_layers"] and result["kept"] >= 0.9995
    assert result["float_layers"][0] in {row["layer"] for row in result["sensitivity"][:4]}


def test_named_layers_stay_in_float32(folder):
    result = quantize(folder, "named", "modules_to_not_convert=layers.0")
    assert len(result["float_layers"]) == 4 and all(".layers.0." in name for name in result["float_layers"])
    message = run_cli_error("quantize", f"model={folder / 'mood'}", *data(folder), "modules_to_not_convert=layer",
                            f"out={folder / 'x'}")  # fmt: skip
    assert "modules_to_not_convert=layer is the beginning of no" in message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("mode=qat",), "set data.train"),
        (("percentile=99",), "set mode=static"),
        (("mode=static", "percentile=20"), "between 50 and 100"),
        (("train.steps=3",), "applies only to mode=qat"),
        (("corpus=nowhere",), "nowhere"),
    ],
)
def test_contradicting_settings_are_refused(folder, words, part):
    assert part in run_cli_error("quantize", f"model={folder / 'bert'}", *words, f"out={folder / 'refused'}")
    assert not (folder / "refused").exists()


def test_layers_that_are_too_small_are_refused(folder, tmp_path):
    save_model(tmp_path / "small")
    message = run_cli_error("quantize", f"model={tmp_path / 'small'}", f"out={tmp_path / 'out'}")
    assert "no linear layers" in message and not (tmp_path / "out").exists()
