"""The stage `compress`: trained, exported, measured, chosen; killed and resumed; refused by the gate."""

import json

import pytest

import bertsmith
from bertsmith.errors import UserError
from tests.support.cli import kill_cli_when_exists, run_cli, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.rows import write_classification_files

pytest.importorskip("onnxruntime")
TRAIN = ["train.steps=4", "train.batch_tokens=128"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compress")
    write_classification_files(folder, 60, 40)
    save_model(folder / "mood", TASKS["classify"])
    return folder


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    monkeypatch.setattr("bertsmith.compression.search.run.ROUNDS", 1)


def words(folder, out, *settings):
    data = [f"data.train={folder / 'train.jsonl'}", f"data.dev={folder / 'dev.jsonl'}"]
    return ["compress", f"model={folder / 'mood'}", *data, *TRAIN, f"out={folder / out}", *settings]


def test_the_smallest_that_passes_is_written_and_answers(folder):
    result = run_cli_json(*words(folder, "small", "gate=0.01", "precision=fp32", "num_hidden_layers=[]"))
    assert result["created"] and result["metric"] == "accuracy"
    artifacts = {artifact["folder"]: artifact for artifact in result["artifacts"]}
    assert [*artifacts] == ["original-fp32", "pruned-50-fp32"]
    assert artifacts["original-fp32"]["kept"] == 1 and artifacts["original-fp32"]["faster"] == 1
    assert result["chosen"] == "pruned-50-fp32" and artifacts["pruned-50-fp32"]["smaller"] > 1
    for artifact in artifacts.values():
        low, high = artifact["score"]["confidence_interval"]
        assert low <= artifact["score"]["value"] <= high
        assert 0 < artifact["latency_p50"] <= artifact["latency_p99"] and artifact["throughput"] > 0
        assert artifact["peak_memory"] > artifact["bytes"] > 0
    model = folder / "small" / "model"
    assert bertsmith.load(model)("people")["label"] in ("good", "bad") and run_cli_json("verify", f"folder={model}")["intact"]
    assert json.loads((model / "card.json").read_text())["compression"]["folder"] == result["chosen"]
    assert json.loads((folder / "small" / "front.json").read_text())["chosen"] == result["chosen"]
    assert "original, 50% pruned" in (folder / "small" / "front.html").read_text()
    again = run_cli_json(*words(folder, "small", "gate=0.01", "precision=fp32", "num_hidden_layers=[]"))
    assert not again["created"] and again["artifacts"] == result["artifacts"]


def test_the_gate_refuses_and_a_lower_gate_uses_what_was_trained(folder):
    settings = ["num_hidden_layers=1", "amount=[]", "precision=fp32"]
    error = run_cli(*words(folder, "refused", "gate=1", *settings, "train.learning_rate=5"), code=2).stderr.splitlines()[-1]
    assert "no smaller model keeps 100.0% of the accuracy" in error and "1 layer, fp32 keeps" in error
    out = folder / "refused"
    assert (out / "front.html").is_file() and not (out / "model").exists()
    before = (out / "search" / "1-layers" / "card.json").stat().st_mtime_ns
    result = run_cli_json(*words(folder, "refused", "gate=0.01", *settings, "train.learning_rate=5"))
    assert result["chosen"] == "1-layers-fp32" and (out / "search" / "1-layers" / "card.json").stat().st_mtime_ns == before


def test_a_model_that_quantizes_badly_is_refused_by_the_gate(folder, monkeypatch):
    """`quantize` writes nothing worse than the gate: the candidate is left out, and nothing else is smaller."""

    def refuse(recipe, quiet):
        raise UserError(f"kept 0.5 of the accuracy, below gate={recipe.gate}")

    monkeypatch.setattr("bertsmith.compression.search.run.quantize", refuse)
    settings = ["num_hidden_layers=[]", "amount=[]", "precision=int8", "gate=0.98"]
    error = run_cli(*words(folder, "bad", *settings), code=2).stderr.splitlines()[-1]
    assert "no smaller model keeps 98.0% of the accuracy, so none was written" in error
    front = json.loads((folder / "bad/front.json").read_text())
    assert front["omitted"] == [{"name": "original, int8", "reason": "kept 0.5 of the accuracy, below gate=0.98"}]
    assert "below gate=0.98" in (folder / "bad/front.html").read_text() and not (folder / "bad/model").exists()


@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_was(folder):
    settings = ["gate=0.01", "num_hidden_layers=1", "precision=fp32", "train.steps=12", "train.save_every=2"]
    whole = run_cli_json(*words(folder, "whole", *settings))
    kill_cli_when_exists(*words(folder, "killed", *settings), until=folder / "killed/search/1-layers/state/step-2")
    output = run_cli(*words(folder, "killed", *settings), "--json")
    assert "resuming from" in output.stderr
    scores = [[one["score"] for one in result["artifacts"]] for result in (whole, json.loads(output.stdout))]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(("settings", "message"), [
    (["gate=0"], "gate=0 lets every model pass"),
    (["num_hidden_layers=2"], "has 2 layers; students need fewer"),
    (["amount=0.5,0.5"], "names a value twice"),
    (["amount=0.0"], "above 0 and below 1"),
    (["unit=vocab"], "unit=vocab alone has no amount"),
    (["num_hidden_layers=[]", "amount=[]", "precision=fp32"], "nothing is made smaller"),
    (["gate=1.1"], "gate must be at most 1"),
])  # fmt: skip
def test_contradicting_settings_are_refused(folder, settings, message):
    assert message in run_cli_error(*words(folder, "no", *settings))


def test_a_pretrained_model_is_refused(folder):
    save_model(folder / "bert")
    data = f"data.train={folder / 'train.jsonl'}"
    error = run_cli_error("compress", f"model={folder / 'bert'}", data, f"out={folder / 'no'}")
    assert "was not fine-tuned for a task" in error
