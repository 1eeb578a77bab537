"""`distill`: both stages run, resume and publish an ordinary model; students, layers, and errors that come before the work."""

import json

import numpy as np
import pytest
import torch

import bertsmith
from bertsmith.compression.distillation.layers import initial_layers, map_layers
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.tensors import load_tensors
from tests.support.cli import FAST, kill_cli_when_exists, run_cli, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.rows import CASES, classification_row, write_jsonl

STATES = ["loss.hidden_states=1", "loss.embeddings=1", "loss.attentions=1", "loss.cosine=1"]


@pytest.fixture
def rows(tmp_path):
    make = lambda n: [classification_row(np.random.default_rng(i + n)) for i in range(n)]
    return {name: write_jsonl(tmp_path / f"{name}.jsonl", make(n)) for name, n in (("train", 200), ("dev", 50))}


@pytest.fixture
def teacher(tmp_path):
    """A random classifier of two layers."""
    return save_model(tmp_path / "teacher", TASKS["classify"])


def task_command(teacher, rows, out, *words):
    data = [f"data.{name}={path}" for name, path in rows.items()]
    return ["distill", f"teacher={teacher}", *data, f"out={out}", *FAST, "student.num_hidden_layers=1", *words]


def corpus_command(teacher, corpus, out, *words):
    keys = ["max_length=32", "train.batch_tokens=256", "train.steps=6", "train.log_every=1", "eval_tokens=512"]
    keys += ["validation_split=0.1"]
    return ["distill", f"teacher={teacher}", f"corpus={corpus}", f"out={out}", *keys, *words]


@pytest.mark.parametrize(("num_layers", "expected"), [(6, [1, 3, 5, 8, 10, 12]), (1, [1]), (12, list(range(1, 13)))])
def test_uniform_initial_layers_are_those_of_distilbert(num_layers, expected):
    assert initial_layers("uniform", num_layers, 12) == expected


def test_layer_maps():
    assert map_layers("uniform", 4, 12) == [3, 6, 9, 12]  # TinyBERT
    assert map_layers("last", 2, 6) == [5, 6] and map_layers((2, 3), 2, 6) == [2, 3]
    assert initial_layers("last", 2, 6) == [5, 6] and initial_layers("first", 2, 6) == [1, 2]
    for call in (lambda: map_layers((1,), 2, 6), lambda: map_layers((0, 7), 2, 6), lambda: initial_layers("first", 7, 6)):
        with pytest.raises(UserError):
            call()


@pytest.mark.parametrize("kind", ["classify", "regress", "tag"])
def test_student_of_each_task_learns_from_its_teacher(bert, tmp_path, kind):
    """A teacher that solves an easy task; its student of one layer scores nearly as well, and is an ordinary model."""
    make_row, metric = CASES[kind]
    rows = {
        name: write_jsonl(tmp_path / f"{name}.jsonl", [make_row(np.random.default_rng(i + n)) for i in range(n)])
        for name, n in (("train", 600), ("dev", 100))
    }
    data = [f"data.{name}={path}" for name, path in rows.items()]
    run_cli("finetune", f"task={kind}", f"model={bert}", *data, f"out={tmp_path / 'teacher'}", *FAST, "train.epochs=8")
    command = task_command(tmp_path / "teacher", rows, tmp_path / "student", "train.epochs=8", "loss.hidden_states=0.1")
    result = run_cli_json(*command)
    assert result["dev"][metric] > 0.75
    assert not run_cli_json(*command)["created"]
    model, _, _ = checkpoint.load(tmp_path / "student")
    assert len(model.encoder.stack.layers) == 1
    assert run_cli_json("evaluate", f"model={tmp_path / 'student'}", f"data={rows['dev']}")["scores"] == pytest.approx(
        result["dev"]
    )


def test_student_starts_from_layers_of_the_teacher(teacher, rows, tmp_path):
    """With a learning rate of almost nothing, the student is its initial weights."""
    command = task_command(
        teacher, rows, tmp_path / "out", "student.init_layers=[2]", "train.steps=1", "train.learning_rate=1e-9"
    )
    run_cli(*command)
    weights, source = load_tensors(tmp_path / "out/model.safetensors"), load_tensors(teacher / "model.safetensors")
    for name, tensor in weights.items():
        other = source[name.replace("layers.0.", "layers.1.")]
        torch.testing.assert_close(tensor, other, atol=1e-6, rtol=0)


def test_smaller_width_is_projected_and_the_projections_are_not_published(teacher, rows, tmp_path):
    keys = ["student.hidden_size=16", "student.num_attention_heads=2", *STATES]
    result = run_cli_json(*task_command(teacher, rows, tmp_path / "out", *keys, "train.steps=3", "train.log_every=1"))
    logged = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    for name in ("soft_labels", "hidden_states", "embeddings", "attentions", "cosine"):
        assert logged[0][f"{name}_loss"] > 0
    assert result["step"] == 3 and not [name for name in load_tensors(tmp_path / "out/model.safetensors") if "distill" in name]
    config = checkpoint.load(tmp_path / "out")[0].config.encoder
    assert (config.hidden_size, config.num_hidden_layers, config.feedforward.intermediate_size) == (16, 1, 32)


@pytest.mark.parametrize("loss", ["distilbert", "tinybert", "minilm", "minilmv2"])
def test_general_stage_with_the_losses_of_the_papers(corpus, tmp_path, loss):
    teacher = save_model(tmp_path / "teacher")
    result = run_cli_json(*corpus_command(teacher, corpus, tmp_path / "out", f"loss={loss}"))
    assert result["step"] == 6 and result["valid_mlm_loss"] > 0
    assert len(bertsmith.load(tmp_path / "out").fill("the [MASK] people")) == 5
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["stage"] == "distill" and config["recipe"]["teacher"] == str(teacher)


def test_general_stage_lowers_the_soft_label_loss(corpus, tmp_path):
    teacher = save_model(tmp_path / "teacher")
    keys = ["loss.hard_labels=0", "train.steps=40", "train.learning_rate=3e-3"]
    run_cli(*corpus_command(teacher, corpus, tmp_path / "out", *keys))
    logged = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    losses = [row["soft_labels_loss"] for row in logged if "soft_labels_loss" in row]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:3])


def test_presets_are_students_with_the_tokenizer_of_the_teacher(corpus, tmp_path):
    teacher = save_model(tmp_path / "teacher")
    run_cli(*corpus_command(teacher, corpus, tmp_path / "out", "student=bert-tiny", "loss.cosine=1", "train.steps=1"))
    model, tokenizer, _ = checkpoint.load(tmp_path / "out")
    assert model.config.encoder.hidden_size == 128 and tokenizer.fingerprint == checkpoint.load(teacher)[1].fingerprint


@pytest.mark.parametrize("stage", ["task", "corpus"])
def test_killed_run_resumes_to_the_same_weights(corpus, rows, tmp_path, stage):
    """Weights of the student and of the projections, which are trained with it."""
    keys = [*STATES, "student.hidden_size=16", "student.num_attention_heads=2", "train.save_every=2"]
    if stage == "task":
        keys += ["train.steps=12", "train.eval_every=100"]
        command = lambda out: task_command(save_teacher, rows, out, *keys)
        save_teacher = save_model(tmp_path / "teacher", TASKS["classify"])
    else:
        keys += ["student.num_hidden_layers=1", "train.steps=12"]
        save_teacher = save_model(tmp_path / "teacher")
        command = lambda out: corpus_command(save_teacher, corpus, out, *keys)
    run_cli(*command(tmp_path / "whole"))
    kill_cli_when_exists(*command(tmp_path / "killed"), until=tmp_path / "killed/state/step-2")
    assert "resuming from" in run_cli(*command(tmp_path / "killed")).stderr
    whole, killed = (load_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys() and all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())


def test_errors_come_before_the_work_and_say_what_works(teacher, rows, corpus, tmp_path):
    pretrained, out = save_model(tmp_path / "pretrained"), tmp_path / "out"
    data = [f"data.train={rows['train']}", f"out={out}"]
    assert "either data" in run_cli_error("distill", f"teacher={teacher}", f"out={out}")
    assert "either data" in run_cli_error("distill", f"teacher={teacher}", f"corpus={corpus}", *data)
    assert "not fine-tuned for a task" in run_cli_error("distill", f"teacher={pretrained}", *data)
    assert "did you mean 'loss.soft_labels'" in run_cli_error("distill", f"teacher={teacher}", *data, "alpha_ce=1")
    no_loss = run_cli_error("distill", f"teacher={teacher}", *data, "loss.soft_labels=0", "loss.hard_labels=0")
    assert "nothing to learn" in no_loss
    heads = ["student.hidden_size=16", "student.num_attention_heads=4", "loss.attentions=1"]
    assert "loss.relation_types=qq,kk,vv" in run_cli_error("distill", f"teacher={teacher}", *data, *heads)
    too_many = run_cli_error("distill", f"teacher={teacher}", *data, "student.num_hidden_layers=9")
    assert "student of 9 layers" in too_many
    no_head = run_cli_error("distill", f"teacher={teacher}", f"corpus={corpus}", f"out={out}", "train.steps=1")
    assert "no language modelling head" in no_head and "loss.soft_labels=0" in no_head
    assert not (out / "model.safetensors").exists()


def test_student_with_another_vocabulary_is_refused(teacher, rows, tmp_path):
    error = run_cli_error(
        "distill", f"teacher={teacher}", f"data.train={rows['train']}", f"out={tmp_path / 'out'}", "student=mini-en"
    )
    assert "another tokenizer" in error and "student.num_hidden_layers=3" in error
