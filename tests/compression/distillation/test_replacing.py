"""Module replacing: schedule, modules, what is trained when, and runs that are killed and resumed."""

import pytest
import torch

import bertsmith
from bertsmith.compression.distillation.replacing import Replacing, divide_modules, freeze_shared
from bertsmith.model import checkpoint
from bertsmith.tensors import load_tensors
from bertsmith.train.param_groups import ParamSchedule
from tests.support.cli import FAST, kill_cli_when_exists, run_cli, run_cli_error, run_cli_json
from tests.support.models import TASKS, save_model
from tests.support.rows import write_classification_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("theseus")
    write_classification_files(folder, 120, 40)
    save_model(folder / "teacher", TASKS["classify"])
    return folder


def command(folder, out, *words):
    data = [f"data.{name}={folder / name}.jsonl" for name in ("train", "dev")]
    return ["distill", f"teacher={folder / 'teacher'}", *data, f"out={folder / out}", *FAST, "train.batch_tokens=128", *words]


def test_the_probability_rises_to_one():
    replacing = Replacing(replacing_rate=0.3, end=0.5)
    assert [round(replacing.probability(t), 6) for t in (0, 0.25, 0.499999, 0.5, 1)] == [0.3, 0.65, 0.999999, 1, 1]
    assert Replacing(replacing_rate=0, end=0).probability(0) == 1


def test_the_choice_is_a_pure_function_and_has_the_probability():
    replacing = Replacing(replacing_rate=0.4, end=0.8)
    chosen = torch.stack([replacing.choose(3, k, 0.2, 6) for k in range(2000)])
    assert torch.equal(chosen[7], replacing.choose(3, 7, 0.2, 6))
    assert chosen.float().mean().item() == pytest.approx(replacing.probability(0.2), abs=0.02)
    assert replacing.choose(3, 7, 0.9, 6).all()


@pytest.mark.parametrize(("layers", "students", "modules"), [
    (6, 3, [[0, 1], [2, 3], [4, 5]]), (12, 6, [[n, n + 1] for n in range(0, 12, 2)]), (6, 4, [[0, 1], [2], [3, 4], [5]]),
])  # fmt: skip
def test_modules_divide_the_layers(layers, students, modules):
    assert divide_modules(layers, students) == modules


def test_only_layers_are_trained_before_all_are_replaced():
    schedule = freeze_shared(lambda name: ParamSchedule(0.5), Replacing(end=0.6))
    assert schedule("encoder.stack.layers.0.mixer.projections.qkv.weight") == ParamSchedule(0.5, 0.0)
    for name in ("encoder.word_embeddings.weight", "encoder.stack.final_norm.norm.weight", "heads.task.score.weight"):
        assert schedule(name) == ParamSchedule(0.5, 0.6)


def test_embeddings_and_head_stay_while_modules_are_replaced(folder):
    run_cli(*command(folder, "frozen", "replacing.end=0.99", "train.steps=4", "student.num_hidden_layers=1"))
    weights, source = (load_tensors(folder / name / "model.safetensors") for name in ("frozen", "teacher"))
    for name, weight in weights.items():
        is_layer = name.startswith("encoder.stack.layers.")
        assert torch.equal(weight, source[name]) != is_layer, name


def test_a_student_is_trained_killed_and_resumed(folder):
    words = ["replacing=theseus", "student.num_hidden_layers=1", "student.init_layers=first", "train.steps=12",
             "train.save_every=2", "train.eval_every=100"]  # fmt: skip
    result = run_cli_json(*command(folder, "whole", *words))
    assert result["step"] == 12 and not run_cli_json(*command(folder, "whole", *words))["created"]
    assert len(checkpoint.load(folder / "whole")[0].encoder.stack.layers) == 1
    assert bertsmith.load(folder / "whole")("people")["label"] in ("good", "bad")
    kill_cli_when_exists(*command(folder, "killed", *words), until=folder / "killed/state/step-2")
    assert "resuming from" in run_cli(*command(folder, "killed", *words)).stderr
    whole, killed = (load_tensors(folder / name / "model.safetensors") for name in ("whole", "killed"))
    assert whole.keys() == killed.keys() and all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())


@pytest.mark.parametrize(("words", "message"), [
    (["loss.cosine=1"], "learns from the labels alone"),
    (["student.hidden_size=16"], "a student of the teacher's sizes"),
    (["train.compile=true"], "do not work with replacing"),
])  # fmt: skip
def test_contradicting_settings_are_refused(folder, words, message):
    assert message in run_cli_error(*command(folder, "no", "replacing=theseus", *words))
