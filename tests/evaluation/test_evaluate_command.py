"""From a tiny model to a report by the command line: taught, judged, compared, read."""

import json

import numpy as np
import pytest

import bertsmith
from bertsmith.artifacts import verify_manifest
from tests.evaluation.test_report import checked
from tests.journeys.test_finetuning import classified, tagged, written
from tests.journeys.test_pretraining import answer, ran, refused

FAST = ["length=32", "train.batch_tokens=512", "train.rate=3e-3", "train.log_every=50"]


@pytest.fixture(scope="module")
def taught(tiny, tmp_path_factory):
    """A model of two labels, the same but hardly taught, and their dev file."""
    folder = tmp_path_factory.mktemp("taught")
    rows = [classified(np.random.default_rng(i)) for i in range(500)]
    rows = [row | {"label": "bad"} if i % 9 == 0 else row for i, row in enumerate(rows)]  # some labels are wrong
    train, dev = written(folder / "train.jsonl", rows[:400]), written(folder / "dev.jsonl", rows[400:])
    words = ["finetune", "task=classify", f"model={tiny}", f"data.train={train}", f"data.dev={dev}", *FAST]
    ran(*words, "train.epochs=8", f"out={folder / 'good'}")
    ran(*words, "train.steps=1", f"out={folder / 'poor'}")
    return folder


def test_a_card_holds_what_was_measured_and_tuned(taught):
    card = json.loads((taught / "good" / "card.json").read_text())
    told = card["metrics"]["accuracy"]
    assert told["low"] <= told["value"] == card["result"]["dev"]["accuracy"] <= told["high"]
    assert card["temperature"] != 1.0 and card["threshold"] == 0.5
    task = json.loads((taught / "good" / "config.json").read_text())["task"]
    assert task["temperature"] == card["temperature"] == bertsmith.load(taught / "good").task.temperature


def test_a_report_is_written_and_read(taught, tmp_path):
    words = ["evaluate", f"model={taught / 'good'}", f"data={taught / 'dev.jsonl'}", f"out={tmp_path / 'report'}", "errors=3"]
    told = answer(*words, f"against={taught / 'poor'}")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"scores.json", "report.html", "manifest.json"}
    verify_manifest(tmp_path / "report")
    page = checked((tmp_path / "report" / "report.html").read_bytes())
    assert f"{told['scores']['accuracy']:.1%}" in page.text and "Against poor" in page.text and "How sure it is" in page.text
    kept = json.loads((tmp_path / "report" / "scores.json").read_text())
    assert kept["scores"] == told["scores"] and kept["examples"] == 100 and len(kept["worst"]) == 3
    accuracy = told["against"]["differences"][0]
    assert (
        accuracy["name"] == "accuracy" and accuracy["above"]["low"] > 0 and accuracy["p"] < 0.05 and accuracy["exact_p"] < 0.05
    )
    assert kept["calibration"]["after"]["loss"] < kept["calibration"]["before"]["loss"]  # the file it was fitted on
    again = answer(*words)  # over the old report, without another model
    assert "against" not in again and "Against" not in checked((tmp_path / "report" / "report.html").read_bytes()).text


def test_scores_are_printed_in_columns_with_their_intervals(taught):
    told = ran("evaluate", f"model={taught / 'good'}", f"data={taught / 'dev.jsonl'}", f"against={taught / 'poor'}").stderr
    line = next(line for line in told.splitlines() if line.split()[:1] == ["accuracy"])
    name, score, low, to, high = line.split()
    assert (name, to) == ("accuracy", "to") and float(low) < float(score) < float(high)
    assert "difference" in told and "below 0.001" in told


def test_from_python_the_function_stays_a_function(taught):
    for _ in range(2):
        told = bertsmith.evaluate(model=taught / "good", data=taught / "dev.jsonl", quiet=True)
    assert told["intervals"]["accuracy"][0] < told["scores"]["accuracy"]


def test_entities_are_reported_in_their_sentences(tiny, tmp_path):
    rows = [tagged(np.random.default_rng(i)) for i in range(260)]
    train, dev = written(tmp_path / "train.jsonl", rows[:200]), written(tmp_path / "dev.jsonl", rows[200:])
    words = ["task=tag", f"model={tiny}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST]
    ran("finetune", *words, "train.epochs=2")
    told = answer("evaluate", f"model={tmp_path / 'out'}", f"data={dev}", f"out={tmp_path / 'report'}")
    low, high = told["intervals"]["f1"]
    assert low <= told["scores"]["f1"] <= high
    page = checked((tmp_path / "report" / "report.html").read_bytes()).text
    assert "What is wrong with entities" in page and f"{told['scores']['f1']:.1%}" in page


def test_bad_requests_are_refused(taught, tiny, tmp_path):
    begin = ["evaluate", f"model={taught / 'good'}"]
    dev = f"data={taught / 'dev.jsonl'}"
    strange = written(tmp_path / "strange.jsonl", [{"text": "the way", "label": "god"}])
    assert "did you mean 'good'" in refused(*begin, f"data={strange}")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    assert "holds other things" in refused(*begin, dev, f"out={tmp_path / 'full'}")
    assert "was not fine-tuned" in refused(*begin, dev, f"against={tiny}")
