"""`bertsmith export`: options of each format, a verified folder or none, and its checksums."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import bertsmith
from bertsmith.convert import parity
from tests.support.cli import FAST, run_cli, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.rows import write_jsonl


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / "classify", TASKS["classify"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["format=vectors", "check=true"], "format=vectors does not take check or card; leave them out"),
        (["format=int8", "check=true"], "check=true applies to format=hf only"),
        (["format=hf", "card=facts.toml"], "card applies to format=int8 only; leave it out"),
        (["format=tflite"], "format = 'tflite' is not valid; choose from hf, onnx, openvino, int8, vectors"),
        (["format=onnx", "check=true"], "format=onnx always compares"),
        (["format=openvino", "card=facts.toml"], "card applies to format=int8 only; leave it out"),
    ],
)
def test_export_refuses_options_of_another_format(model, tmp_path, words, message):
    assert message in run_cli_error("export", f"model={model}", f"out={tmp_path / 'out'}", *words)
    assert not (tmp_path / "out").exists()


def test_export_gives_transformers_the_same_answers_and_lists_its_files(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "hf"
    result = run_cli_json("export", f"model={model}", f"out={out}", "check=true")
    assert result["class"] == "BertForSequenceClassification" and max(result["differences"].values()) < 1e-5
    assert all(hashlib.sha256((out / name).read_bytes()).hexdigest() == value for name, value in result["files"].items())
    assert {"config.json", "model.safetensors"} <= result["files"].keys()
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert theirs.config.id2label == {0: "bad", 1: "good"}
    back = run_cli_json("import", f"source={out}", f"out={tmp_path / 'back'}")
    assert back["created"]
    ours, again = (bertsmith.load(folder)("the way people were made")["scores"] for folder in (model, tmp_path / "back"))
    assert_close(torch.tensor(list(ours.values())), torch.tensor(list(again.values())))


def test_export_that_fails_its_check_leaves_no_folder(model, tmp_path, monkeypatch):
    monkeypatch.setattr(parity, "compute_differences", lambda *_: {"hidden": 0.5})
    message = run_cli_error("export", f"model={model}", f"out={tmp_path / 'hf'}", "check=true")
    assert "gives different outputs" in message and "nothing was written" in message
    assert not [path for path in Path(tmp_path).iterdir() if path.is_dir()]


def test_export_into_a_folder_with_other_files_is_refused(model, tmp_path):
    (tmp_path / "thesis.txt").write_text("text")
    assert "choose another out" in run_cli_error("export", f"model={model}", f"out={tmp_path}")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["thesis.txt"]


ROWS = [{"text": "the people", "label": "good"}, {"text": "the water", "label": "bad"}]


def finetune_small(folder, rows, *words):
    data = write_jsonl(folder / "rows.jsonl", rows)
    run_cli("finetune", "task=classify", f"data.train={data}", f"out={folder / 'm'}", "train.steps=1", *FAST, *words)
    return folder / "m"


@pytest.mark.parametrize("words", [["pooling=mean"], ["pooling=max"], ["pooling=concat"]])
def test_export_writes_the_code_where_transformers_has_no_such_pooling(tmp_path, words):
    folder = finetune_small(tmp_path, ROWS, f"model={save_model(tmp_path / 'base')}", *words)
    result = run_cli_json("export", f"model={folder}", f"out={tmp_path / 'hf'}", "check=true")
    assert result["class"] == "BertsmithForSequenceClassification" and max(result["differences"].values()) < 1e-5
    assert "modeling_bertsmith.py" in result["files"]


def test_export_refuses_heads_that_transformers_has_not(tmp_path):
    folder = finetune_small(tmp_path, ROWS, f"model={save_model(tmp_path / 'base')}", "features.layers=mix")
    error = run_cli_error("export", f"model={folder}", f"out={tmp_path / 'hf'}")
    assert "the head `task` of kind features" in error and "format=int8" in error and not (tmp_path / "hf").exists()
    assert run_cli_json("export", f"model={folder}", "format=int8", f"out={tmp_path / 'int8'}")["out"]


def test_export_of_a_fine_tuned_shipped_model_has_its_probabilities(tmp_path):
    rows = [{"text": "a fine film", "label": "good"}, {"text": "a dull film", "label": "bad"}]
    folder = finetune_small(tmp_path, rows, "model=mini-en")
    result = run_cli_json("export", f"model={folder}", f"out={tmp_path / 'hf'}", "check=true")
    assert result["family"] == "bertsmith" and max(result["differences"].values()) < 1e-5
    readme = (tmp_path / "hf" / "README.md").read_text()
    assert "AutoModelForSequenceClassification.from_pretrained(" in readme and "trust_remote_code=True" in readme
