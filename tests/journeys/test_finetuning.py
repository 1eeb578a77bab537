"""Fine-tuning, evaluation and prediction of every task on the command line."""

import json

import numpy as np
import pytest

import bertsmith
from tests.support.cli import FAST, run_cli, run_cli_error, run_cli_json
from tests.support.rows import CASES, classification_row, random_words, squad_paragraph, write_jsonl


@pytest.mark.parametrize("kind", CASES)
def test_finetuned_task_is_evaluated_and_predicts(bert, tmp_path, kind):
    make_row, metric = CASES[kind]
    train, dev = (
        write_jsonl(tmp_path / f"{n}.jsonl", [make_row(np.random.default_rng(i + n)) for i in range(n)]) for n in (600, 100)
    )
    args = [f"task={kind}", f"model={bert}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST]
    result = run_cli_json("finetune", *args, "train.epochs=8")
    assert result["dev"][metric] > 0.8
    assert not run_cli_json("finetune", *args, "train.epochs=8")["created"]
    evaluation = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={dev}")
    assert evaluation["scores"] == pytest.approx(result["dev"])
    run_cli("predict", f"model={tmp_path / 'out'}", f"data={dev}", f"out={tmp_path / 'answers.jsonl'}")
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 100


def test_finetuned_question_answering(bert, tmp_path):
    for n in (500, 60):
        paragraphs = [squad_paragraph(np.random.default_rng(i + n), i) for i in range(n)]
        (tmp_path / f"{n}.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    args = [
        f"model={bert}",
        f"data.train={tmp_path / '500.json'}",
        f"data.dev={tmp_path / '60.json'}",
        f"out={tmp_path / 'out'}",
    ]
    result = run_cli_json("finetune", "task=answer", *args, *FAST, "train.epochs=8")
    assert result["dev"]["exact"] > 0.8


def test_finetuned_model_predicts_from_its_folder(bert, tmp_path):
    rows = [classification_row(np.random.default_rng(i)) for i in range(600)]
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    run_cli(
        "finetune", "task=classify", f"model={bert}", f"data.train={train}", f"out={tmp_path / 'out'}", *FAST, "train.epochs=8"
    )
    model = bertsmith.load(tmp_path / "out")
    assert model("the way people were made")["label"] == "good"
    predictions = model(["the way people were made", "water of the one", ""], batch_tokens=16)
    assert [prediction["label"] for prediction in predictions[:2]] == ["good", "bad"] and predictions[2]["label"] in (
        "good",
        "bad",
    )
    printed = run_cli("predict", f"model={tmp_path / 'out'}", "text=water of the one").stdout
    assert json.loads(printed)["label"] == "bad"


@pytest.mark.parametrize("long", ["window", "hierarchical", "truncate"])
def test_finetuning_on_long_documents(bert, tmp_path, long):
    """The decisive word is at the end: windows see it, truncation loses it."""
    rows = []
    for i in range(500):
        rng = np.random.default_rng(i)
        is_good = bool(rng.integers(2))
        rows.append({"text": " ".join([*random_words(rng, 40), "people" if is_good else "water"]), "label": str(is_good)})
    train, dev = write_jsonl(tmp_path / "train.jsonl", rows[:400]), write_jsonl(tmp_path / "dev.jsonl", rows[400:])
    args = [f"model={bert}", f"data.train={train}", f"data.dev={dev}", f"out={tmp_path / 'out'}", *FAST]
    accuracy = run_cli_json(
        "finetune", "task=classify", f"task.long_text={long}", "task.doc_stride=24", *args, "train.epochs=8"
    )["dev"]["accuracy"]
    assert accuracy < 0.7 if long == "truncate" else accuracy > 0.8


def test_finetuning_resumes_exactly_after_interruption(bert, tmp_path, monkeypatch):
    from bertsmith.errors import Interrupted
    from bertsmith.train.trainer import Trainer

    train = write_jsonl(tmp_path / "train.jsonl", [classification_row(np.random.default_rng(i)) for i in range(200)])
    args = ["finetune", "task=classify", f"model={bert}", f"data.train={train}", *FAST, "train.epochs=4", "train.save_every=7"]
    run_cli(*args, f"out={tmp_path / 'straight'}")
    original_step = Trainer._step

    def interrupted_step(self, batch):
        if self.progress.step == 13:
            raise Interrupted("as if killed")
        return original_step(self, batch)

    monkeypatch.setattr(Trainer, "_step", interrupted_step)
    run_cli(*args, f"out={tmp_path / 'killed'}", code=130)
    monkeypatch.setattr(Trainer, "_step", original_step)
    run_cli(*args, f"out={tmp_path / 'killed'}")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


def test_finetuning_without_settings_trains_and_says_how(bert, tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", [classification_row(np.random.default_rng(i)) for i in range(60)])
    args = ["finetune", "task=classify", f"model={bert}", f"data.train={train}", f"out={tmp_path / 'out'}"]
    messages = run_cli(*args).stderr
    assert "6 of 60 rows" in messages and "set data.dev" in messages
    assert "settings: max_length=512, long_text=truncate, train.learning_rate=0.0012, train.batch_tokens=" in messages
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["result"]["settings"]["train.epochs"] == 20 and card["result"]["settings"]["train.early_stopping_patience"] == 5


def test_finetuning_rejects_bad_requests(bert, tmp_path):
    train = write_jsonl(
        tmp_path / "train.jsonl", [{"text": "the way", "label": "a"}, {"text": "the", "label": "b"}, {"sentence": "x"}]
    )
    args = ["finetune", "task=classify", f"model={bert}", f"out={tmp_path / 'out'}", *FAST, "train.epochs=1"]
    assert "line 3" in run_cli_error(*args, f"data.train={train}")
    assert "skipped 1 invalid row" in run_cli(*args, f"data.train={train}", "data.skip_bad=true").stderr
    good = write_jsonl(tmp_path / "good.jsonl", [{"text": "the way", "label": "a"}, {"text": "the", "label": "b"}])
    assert "train.workers" in run_cli_error(*args, f"data.train={good}", f"out={tmp_path / 'ahead'}", "train.workers=2")
    assert "was not fine-tuned" in run_cli_error("predict", f"model={bert}", "text=hello")
    assert "give a text or data=FILE" in run_cli_error("predict", f"model={bert}")
