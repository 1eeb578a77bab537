"""`bertsmith evaluate`: fine-tunes a tiny model, evaluates it, compares it with another, and reads the report."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.artifacts import verify_manifest
from tests.support.cli import run_cli, run_cli_error, run_cli_json
from tests.support.html import parse_page
from tests.support.rows import classification_row, tagging_row, write_jsonl

FAST = ["max_length=32", "train.batch_tokens=512", "train.learning_rate=3e-3", "train.log_every=50"]


@pytest.fixture(scope="module")
def finetuned(tiny_model, tmp_path_factory):
    """A folder with a fine-tuned classifier (good), the same after a single step (poor), and their dev file."""
    folder = tmp_path_factory.mktemp("finetuned")
    rows = [classification_row(np.random.default_rng(i)) for i in range(500)]
    rows = [row | {"label": "bad"} if i % 9 == 0 else row for i, row in enumerate(rows)]  # some labels are wrong
    train, dev = write_jsonl(folder / "train.jsonl", rows[:400]), write_jsonl(folder / "dev.jsonl", rows[400:])
    command = ["finetune", "task=classify", f"model={tiny_model}", f"data.train={train}", f"data.dev={dev}", *FAST]
    run_cli(*command, "train.epochs=8", f"out={folder / 'good'}")
    run_cli(*command, "train.steps=1", f"out={folder / 'poor'}")
    return folder


def test_finetuned_card_has_intervals_and_temperature(finetuned):
    card = json.loads((finetuned / "good" / "card.json").read_text())
    accuracy = card["metrics"]["accuracy"]
    low, high = accuracy["confidence_interval"]
    assert low <= accuracy["value"] == card["result"]["dev"]["accuracy"] <= high
    assert card["temperature"] != 1.0 and card["threshold"] == 0.5
    task = json.loads((finetuned / "good" / "config.json").read_text())["task"]
    assert task["temperature"] == card["temperature"] == bertsmith.load(finetuned / "good").task.temperature


def test_evaluate_writes_report_and_scores(finetuned, tmp_path):
    command = [
        "evaluate",
        f"model={finetuned / 'good'}",
        f"data={finetuned / 'dev.jsonl'}",
        f"out={tmp_path / 'report'}",
        "errors=3",
    ]
    result = run_cli_json(*command, f"against={finetuned / 'poor'}")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"scores.json", "report.html", "manifest.json"}
    verify_manifest(tmp_path / "report")
    page = parse_page((tmp_path / "report" / "report.html").read_bytes())
    assert (
        f"{result['scores']['accuracy']:.1%}" in page.text
        and "Comparison with poor" in page.text
        and "Accuracy by confidence" in page.text
    )
    scores = json.loads((tmp_path / "report" / "scores.json").read_text())
    assert scores["scores"] == result["scores"] and scores["num_examples"] == 100 and len(scores["worst_errors"]) == 3
    accuracy = result["comparison"]["differences"]["accuracy"]
    assert accuracy["difference"] == pytest.approx(accuracy["score"] - accuracy["other_score"])
    assert accuracy["confidence_interval"][0] > 0 and accuracy["p_value"] < 0.05 and accuracy["mcnemar_p_value"] < 0.05
    assert (
        scores["calibration"]["calibrated"]["nll"] < scores["calibration"]["uncalibrated"]["nll"]
    )  # on the file it was tuned on
    again = run_cli_json(*command)  # overwrites the report, without comparison
    assert "comparison" not in again and "Comparison" not in parse_page((tmp_path / "report" / "report.html").read_bytes()).text


def test_evaluate_prints_scores_with_intervals(finetuned):
    output = run_cli(
        "evaluate", f"model={finetuned / 'good'}", f"data={finetuned / 'dev.jsonl'}", f"against={finetuned / 'poor'}"
    ).stderr
    line = next(line for line in output.splitlines() if line.split()[:1] == ["accuracy"])
    name, score, low, to, high = line.split()
    assert (name, to) == ("accuracy", "to") and float(low) < float(score) < float(high)
    assert "difference" in output and "< 0.001" in output


def test_evaluate_from_python_can_be_called_twice(finetuned):
    for _ in range(2):
        result = bertsmith.evaluate(model=finetuned / "good", data=finetuned / "dev.jsonl", quiet=True)
    assert result["confidence_intervals"]["accuracy"][0] < result["scores"]["accuracy"]


def test_evaluate_reports_entity_mistakes(tiny_model, tmp_path):
    rows = [tagging_row(np.random.default_rng(i)) for i in range(260)]
    train, dev = write_jsonl(tmp_path / "train.jsonl", rows[:200]), write_jsonl(tmp_path / "dev.jsonl", rows[200:])
    settings = ["task=tag", f"model={tiny_model}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST]
    run_cli("finetune", *settings, "train.epochs=2")
    result = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={dev}", f"out={tmp_path / 'report'}")
    low, high = result["confidence_intervals"]["f1"]
    assert low <= result["scores"]["f1"] <= high
    page = parse_page((tmp_path / "report" / "report.html").read_bytes()).text
    assert "Entity errors" in page and f"{result['scores']['f1']:.1%}" in page


def test_evaluate_rejects_invalid_requests(finetuned, tiny_model, tmp_path):
    command = ["evaluate", f"model={finetuned / 'good'}"]
    dev = f"data={finetuned / 'dev.jsonl'}"
    unknown_label = write_jsonl(tmp_path / "strange.jsonl", [{"text": "the way", "label": "god"}])
    counted_wrong = run_cli(*command, f"data={unknown_label}", "--json")
    assert "did you mean 'good'" in counted_wrong.stderr
    assert json.loads(counted_wrong.stdout.splitlines()[-1])["scores"]["accuracy"] == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    assert "contains other files" in run_cli_error(*command, dev, f"out={tmp_path / 'full'}")
    assert "was not fine-tuned" in run_cli_error(*command, dev, f"against={tiny_model}")
