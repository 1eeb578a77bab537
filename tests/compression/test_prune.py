"""The stage `prune`: every unit, killed and resumed runs, refusals, and what can be done with a pruned model."""

import json

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.model import checkpoint
from tests.support.cli import kill_cli_when_exists, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.rows import write_classification_files, write_jsonl

TRAIN = ["train.steps=12", "train.batch_tokens=128", "train.log_every=4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prune")
    write_classification_files(folder, 120, 40)
    save_model(folder / "mood", TASKS["classify"])
    save_model(folder / "bert")
    return folder


def prune(folder, out, *words, train=TRAIN):
    data = [f"data.train={folder / 'train.jsonl'}", f"data.dev={folder / 'dev.jsonl'}"]
    return run_cli_json("prune", f"model={folder / 'mood'}", f"out={folder / out}", *data, *train, *words)


def test_heads_and_neurons_are_removed(folder):
    result = prune(folder, "structured", "seed=1")
    assert sum(result["after"]["heads"]) == 2 and sum(result["after"]["neurons"]) == 64
    assert result["after"]["layer_parameters"] < 0.55 * result["before"]["layer_parameters"]
    assert result["after"]["zeros"] == 0
    low, high = result["score"]["after"]["confidence_interval"]
    assert low <= result["score"]["after"]["value"] <= high and result["score"]["metric"] == "accuracy"
    assert result["speed"]["speedup"] > 0
    again = prune(folder, "structured", "seed=1")
    assert not again["created"] and again["score"] == result["score"]
    model = bertsmith.load(folder / "structured")
    assert model("people")["label"] in ("good", "bad") and model.num_parameters == result["after"]["parameters"]
    scores = run_cli_json(
        "evaluate", f"model={folder / 'structured'}", f"data={folder / 'dev.jsonl'}", f"out={folder / 'report'}"
    )
    assert scores["scores"]["accuracy"] == pytest.approx(result["dev"]["accuracy"])
    tuned = run_cli_json("finetune", "task=classify", f"model={folder / 'structured'}", f"data.train={folder / 'train.jsonl'}",
                         "train.steps=2", "train.early_stopping_patience=0", f"out={folder / 'tuned'}")  # fmt: skip
    exported = run_cli_json("export", f"model={folder / 'structured'}", "format=hf", "check=true", f"out={folder / 'hf'}")
    assert max(exported["differences"].values()) < 1e-5
    assert tuned["created"] and bertsmith.load(folder / "tuned").model.config.encoder.layer_sizes is not None


@pytest.mark.parametrize("importance", ["movement", "magnitude"])
@pytest.mark.parametrize("unit", ["weight", "block"])
def test_weights_and_blocks_become_zero(folder, unit, importance):
    out = f"{unit}-{importance}"
    size = ["block_size=8,8"] if unit == "block" else []
    result = prune(folder, out, f"unit={unit}", "amount=0.75", f"importance={importance}", *size)
    if result["after"]["parameters"] == result["before"]["parameters"]:
        assert result["after"]["zeros"] == pytest.approx(0.75, abs=0.01)
    else:  # heads and neurons that no weight reads are gone, with their zeros
        assert result["after"]["zeros"] < 0.75
    assert not any("parametrizations" in name for name in bertsmith.load(folder / out).model.state_dict())


def test_layers_and_vocabulary_with_heads(folder):
    result = prune(folder, "all", "unit=layer,vocab,head", "amount=0.5")
    assert len(result["after"]["heads"]) == 1 and result["after"]["heads"] == [1]
    assert result["after"]["vocab_size"] < result["before"]["vocab_size"]
    assert bertsmith.load(folder / "all")("people water")["label"] in ("good", "bad")


def test_pretrained_models_are_pruned_without_data(folder):
    texts = folder / "texts.txt"
    texts.write_text("the people said\n")
    result = run_cli_json(
        "prune", f"model={folder / 'bert'}", "unit=vocab,head,layer", f"texts={texts}", f"out={folder / 'once'}"
    )
    assert result["after"]["heads"] == [1] and "score" not in result
    model = bertsmith.load(folder / "once")
    assert model.fill("the [MASK] said")[0]["score"] > 0
    assert json.loads((folder / "once" / "config.json").read_text())["stage"] == "prune"


@pytest.mark.parametrize("words", [["prune", "unit=head"], ["share", "num_hidden_groups=1"]])
def test_a_folder_with_files_of_the_user_is_not_replaced(folder, tmp_path, words):
    (tmp_path / "out" / "state").mkdir(parents=True)
    own = tmp_path / "out" / "state" / "step-2"  # a name that the run of a training may have left
    own.write_text("years of work")
    message = run_cli_error(*words, f"model={folder / 'bert'}", f"out={tmp_path / 'out'}")
    assert "contains other files" in message and own.read_text() == "years of work"


@pytest.mark.parametrize("task", ["regress", "tag", "choose", "answer", "similar"])
def test_every_task_is_pruned(task, folder, tmp_path):
    """One step, since objectives differ by task: targets, teacher and evaluation."""
    rng = np.random.default_rng(1)
    words = lambda: " ".join(str(word) for word in rng.choice(["the", "people", "water", "said"], 5))
    rows = {
        "regress": lambda: {"text": words(), "label": float(rng.random())},
        "tag": lambda: {"tokens": words().split(), "tags": ["O", "B-PER", "I-PER", "O", "O"]},
        "choose": lambda: {"context": words(), "options": [words(), words()], "label": int(rng.integers(2))},
        "similar": lambda: {"text": words(), "text_b": words(), "score": float(rng.random())},
    }
    save_model(tmp_path / "model", TASKS[task])
    if task == "answer":
        context = "the people said water"
        gold = [{"text": "water", "answer_start": 16}]
        paragraph = {"context": context, "qas": [{"id": str(i), "question": "what", "answers": gold} for i in range(6)]}
        file = tmp_path / "rows.json"
        file.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}))
    else:
        file = write_jsonl(tmp_path / "rows.jsonl", [rows[task]() for _ in range(8)])
    result = run_cli_json("prune", f"model={tmp_path / 'model'}", f"data.train={file}", f"data.dev={file}", "train.steps=3",
                          "train.batch_tokens=64", f"out={tmp_path / 'small'}")  # fmt: skip
    assert sum(result["after"]["heads"]) == 2 and result["step"] == 3


@pytest.mark.parametrize("words", [["unit=head,neuron"], pytest.param(["unit=weight", "amount=0.7"], marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_same_weights(folder, tmp_path, words):
    train = ["train.steps=30", "train.batch_tokens=128", "train.save_every=4", "train.log_every=10"]
    prune(folder, tmp_path / "whole", *words, train=train)
    out = tmp_path / "killed"
    data = [f"data.train={folder / 'train.jsonl'}", f"data.dev={folder / 'dev.jsonl'}"]
    kill_cli_when_exists(
        "prune", f"model={folder / 'mood'}", f"out={out}", *data, *train, *words, until=out / "state" / "step-20"
    )
    result = prune(folder, out, *words, train=train)
    assert result["created"] and result["step"] == 30
    weights = [checkpoint.load_weights(tmp_path / name) for name in ("whole", "killed")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(("words", "message"), [
    (["unit=head,head"], "names a unit twice"),
    (["unit=weight,head"], "weight and block cannot be combined"),
    (["unit=head", "texts=a.txt"], "texts applies only to unit=vocab"),
    (["unit=layer", "importance=gradient"], "importance applies only to"),
    (["unit=weight", "importance=gradient"], "importance=gradient scores heads and neurons"),
    (["sparsity_schedule.end=1"], "must be"),
    (["sparsity_schedule.begin=0.9"], "sparsity_schedule.begin=0.9 must be below"),
    (["unit=layer", "amount=0.1"], "removes 0; choose an amount"),
    (["amount=1"], "amount"),
    (["train.early_stopping_patience=3"], "early_stopping_patience"),
    (["train.compile=true"], "train.compile does not work"),
])  # fmt: skip
def test_contradicting_settings_are_refused(folder, words, message):
    data = [f"data.train={folder / 'train.jsonl'}", *TRAIN]
    assert message in run_cli_error("prune", f"model={folder / 'mood'}", f"out={folder / 'no'}", *data, *words)
    assert not (folder / "no" / "config.json").exists()


@pytest.mark.parametrize(("words", "message"), [
    (["unit=vocab"], "unit=vocab keeps the tokens of a corpus"),
    (["importance=gradient"], "importance=gradient is measured on examples"),
    (["unit=layer", "drop_layers=loss"], "drop_layers=loss is measured on examples"),
    (["train.steps=3"], "train applies only with data"),
])  # fmt: skip
def test_settings_that_need_data_are_refused(folder, words, message):
    assert message in run_cli_error("prune", f"model={folder / 'bert'}", f"out={folder / 'no'}", *words)


def test_a_model_without_a_task_cannot_learn_from_data(folder):
    error = run_cli_error("prune", f"model={folder / 'bert'}", f"out={folder / 'no'}", f"data.train={folder / 'train.jsonl'}")
    assert "was not fine-tuned for a task" in error


def test_rows_of_a_program(folder):
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    data = bertsmith.Data(train=rows[:60], dev=rows[60:])
    result = bertsmith.prune(model=folder / "mood", data=data, train={"steps": 2}, out=folder / "rows", quiet=True)
    assert result.model("people")["label"] in ("good", "bad") and result.scores["accuracy"] >= 0


def test_a_teacher_lowers_the_distance_to_its_predictions(folder):
    """With the same steps, the model that is taught agrees more with the unpruned one."""
    texts = [json.loads(line)["text"] for line in (folder / "dev.jsonl").read_text().splitlines()]
    scores = {}
    for name, words in (("taught", ["loss.hard_labels=0"]), ("alone", ["loss.soft_labels=0", "loss.hidden_states=0"])):
        prune(folder, name, *words, train=["train.steps=60", "train.batch_tokens=256", "train.learning_rate=1e-3"])
        scores[name] = np.array([answer["scores"]["good"] for answer in bertsmith.load(folder / name)(texts)])
    teacher = np.array([answer["scores"]["good"] for answer in bertsmith.load(folder / "mood")(texts)])
    assert np.abs(scores["taught"] - teacher).mean() < np.abs(scores["alone"] - teacher).mean()
