"""Cached predictions of the teacher: equal to those of the model in the batch, for every kind of row; written once, removed."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from bertsmith.compression.distillation.predictions import TEACHER_LOGITS, cache_predictions, is_worthwhile
from bertsmith.console import Console
from bertsmith.finetuning.recipe import FinetuneTrain
from bertsmith.model import checkpoint
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.runs import Run
from tests.support.cli import FAST, kill_cli_when_exists, run_cli, run_cli_json
from tests.support.models import TASKS, TOKENIZER, save_model
from tests.support.rows import CASES, write_jsonl


def read_batches(kind, folder, batch_tokens=128):
    """Training batches of random rows, and the objective."""
    rng, (make_row, _) = np.random.default_rng(0), CASES[kind]
    path = write_jsonl(folder / "rows.jsonl", [make_row(rng) for _ in range(50)])
    task = replace(TASKS[kind], labels=()) if kind == "tag" else TASKS[kind]
    examples = list(task.read(path, "utf-8"))
    task = task.fit(examples)
    objective = build_task_objective(task)
    return objective.build_batches(task.encode(examples, TOKENIZER, 48), batch_tokens, 0), objective, task


@pytest.mark.parametrize("kind", ["classify", "regress", "tag", "choose"])
def test_cached_logits_are_those_of_the_batch(tmp_path, kind):
    batches, objective, task = read_batches(kind, tmp_path)
    teacher = checkpoint.load(save_model(tmp_path / "teacher", task))[0].eval()
    cached = cache_predictions(teacher, objective, batches, Run(tmp_path / "out", "a"), "cpu")
    for k in range(2 * batches.batches_per_epoch):
        batch = batches(k)
        targets = cached.add_targets(batch, batches.group_indices(k)).targets
        with torch.no_grad():
            torch.testing.assert_close(targets[TEACHER_LOGITS], objective.compute_outputs(teacher, batch), atol=1e-5, rtol=1e-5)


def test_shards_are_read_instead_of_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("bertsmith.compression.distillation.predictions.SHARD", 16)
    batches, objective, task = read_batches("classify", tmp_path)
    teacher = checkpoint.load(save_model(tmp_path / "teacher", task))[0].eval()
    run = Run(tmp_path / "out", "a", Console(True))
    first = cache_predictions(teacher, objective, batches, run, "cpu")
    paths = sorted(run.cache.iterdir())
    assert len(paths) == 4
    paths[2].unlink()
    times = [path.stat().st_mtime_ns for path in (paths[0], paths[1], paths[3])]
    again = cache_predictions(teacher, objective, batches, run, "cpu")
    assert torch.equal(first.logits, again.logits) and np.array_equal(first.starts, again.starts)
    assert [path.stat().st_mtime_ns for path in (paths[0], paths[1], paths[3])] == times and paths[2].exists()


def test_short_runs_do_not_cache(tmp_path):
    batches, _, _ = read_batches("classify", tmp_path)
    steps = batches.batches_per_epoch
    assert not is_worthwhile(batches, FinetuneTrain(steps=steps)) and is_worthwhile(batches, FinetuneTrain(steps=2 * steps))
    assert not is_worthwhile(batches, FinetuneTrain(minutes=5.0))


def test_a_run_that_caches_resumes_to_the_same_weights_and_removes_the_cache(tmp_path):
    rng, (make_row, _) = np.random.default_rng(0), CASES["classify"]
    data = [f"data.{name}={write_jsonl(tmp_path / f'{name}.jsonl', [make_row(rng) for _ in range(n)])}"
            for name, n in (("train", 80), ("dev", 30))]  # fmt: skip
    teacher = save_model(tmp_path / "teacher", TASKS["classify"])
    words = [*FAST, "student.num_hidden_layers=1", "train.batch_tokens=256", "train.steps=12", "train.save_every=3"]
    command = lambda out: ["distill", f"teacher={teacher}", *data, f"out={tmp_path / out}", *words, "train.eval_every=100"]
    output = run_cli(*command("whole")).stderr
    assert "teacher: predictions for 80 training examples, computed once" in output
    assert not (tmp_path / "whole/state").exists()
    kill_cli_when_exists(*command("killed"), until=tmp_path / "killed/state/step-3")
    output = run_cli(*command("killed")).stderr
    assert "resuming from" in output and "computed once" not in output
    whole, killed = (checkpoint.load_weights(tmp_path / name) for name in ("whole", "killed"))
    assert all(torch.equal(tensor, killed[name]) for name, tensor in whole.items())
    assert run_cli_json(*command("killed"))["step"] == 12
