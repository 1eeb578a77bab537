"""`bertsmith suite`: one table of models, tasks and seeds, validated before training and resumed after interruption."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest

from bertsmith.errors import Interrupted, UserError
from bertsmith.evaluation.suite import SuiteFailure, SuiteRun, SuiteTable, render_page
from bertsmith.finetuning import suite as suite_module
from bertsmith.finetuning.suite import SuiteRecipe, _plan_runs, sort_longest_first
from bertsmith.recipes import read_recipe
from bertsmith.train.trainer import Trainer
from tests.support.cli import ROOT, run_cli, run_cli_error, run_cli_json
from tests.support.html import parse_page
from tests.support.rows import classification_row, regression_row, write_jsonl

SUITE = """
seeds = [0, 1]

[models]
tiny = "{tiny}"

[every]
max_length = 32
train = {{ batch_tokens = 512, learning_rate = 3e-3, epochs = 2, save_every = 5 }}

[tasks.mood]
task = "classify"
data = {{ train = "{folder}/mood.jsonl", dev = "{folder}/mood-dev.jsonl" }}
metrics = ["accuracy", "matthews"]

[tasks.stars]
task = "regress"
data = {{ train = "{folder}/stars.jsonl", dev = "{folder}/stars-dev.jsonl" }}
train = {{ epochs = 1 }}
"""


@pytest.fixture
def suite(tiny_model, tmp_path):
    for name, make in (("mood", classification_row), ("stars", regression_row)):
        rows = [make(np.random.default_rng(i)) for i in range(200)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows[:150]), write_jsonl(tmp_path / f"{name}-dev.jsonl", rows[150:])
    path = tmp_path / "suite.toml"
    path.write_text(SUITE.format(tiny=tiny_model, folder=tmp_path), encoding="utf-8")
    return path


def interrupt_after(monkeypatch, num_runs):
    """Interrupts training in the middle of the run that follows `num_runs` complete ones."""
    original_step, original_fit, started = Trainer._step, Trainer.fit, []

    def fit(self, *rest):
        started.append(self)
        return original_fit(self, *rest)

    def interrupt(self, batch):
        if len(started) > num_runs and self.progress.step == 7:
            raise Interrupted("as if killed")
        return original_step(self, batch)

    monkeypatch.setattr(Trainer, "fit", fit)
    monkeypatch.setattr(Trainer, "_step", interrupt)


def test_interrupted_suite_resumes_to_same_table(suite, tmp_path, monkeypatch):
    uninterrupted = run_cli_json("suite", suite, f"out={tmp_path / 'straight'}")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        run_cli("suite", suite, f"out={tmp_path / 'killed'}", code=130)
    partial = json.loads((tmp_path / "killed" / "scores.json").read_text())
    assert partial["num_pending"] == 2 and len(partial["runs"]) == 2
    assert "2 runs are not finished" in parse_page((tmp_path / "killed" / "report.html").read_bytes()).text
    process = run_cli("suite", suite, f"out={tmp_path / 'killed'}", "--json")
    assert process.stderr.count("already exists, created by the same recipe") == 2
    resumed = json.loads(process.stdout.splitlines()[-1])
    assert resumed["table"] == uninterrupted["table"] and resumed["runs"] == uninterrupted["runs"]
    first, second = (run["scores"] for run in resumed["runs"] if run["task"] == "mood")
    scores = [(run["accuracy"] + run["matthews"]) / 2 for run in (first, second)]
    cell = resumed["table"]["tiny"]["mood"]
    assert (cell["mean"], cell["std"], cell["num_seeds"]) == pytest.approx((mean(scores), stdev(scores), 2))
    text = parse_page((tmp_path / "killed" / "report.html").read_bytes()).text
    assert f"{100 * cell['mean']:.1f} ± {100 * cell['std']:.1f}" in text and "not finished" not in text
    assert json.loads((tmp_path / "killed" / "scores.json").read_text())["num_pending"] == 0


def test_suite_parallel_jobs_give_same_results(suite, tmp_path):
    sequential, parallel = (run_cli_json("suite", suite, f"out={tmp_path / str(jobs)}", f"jobs={jobs}") for jobs in (1, 2))
    assert sequential["table"] == parallel["table"] and sequential["runs"] == parallel["runs"] and len(parallel["runs"]) == 4
    scores = [json.loads((tmp_path / str(jobs) / "scores.json").read_text()) for jobs in (1, 2)]
    assert scores[0] == scores[1] and scores[0]["num_pending"] == 0 and not scores[0]["failures"]


def test_suite_resumes_interrupted_parallel_jobs(suite, tmp_path):
    command, out = (
        [sys.executable, "-m", "bertsmith", "suite", str(suite), f"out={tmp_path / 'out'}", "jobs=2"],
        tmp_path / "out",
    )
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (out / "scores.json").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (0, 130)  # 0: it may have finished already
    finished = json.loads((out / "scores.json").read_text())["runs"]
    resumed = run_cli_json("suite", suite, f"out={out}", "jobs=2")
    assert 1 <= len(finished) <= len(resumed["runs"]) == 4 and all(run in resumed["runs"] for run in finished)


@pytest.mark.parametrize("jobs", [1, 2])
def test_suite_reports_failed_run_and_continues(suite, tmp_path, jobs):
    run_folder = tmp_path / "out" / "runs" / "tiny" / "mood" / "seed-1"
    run_folder.mkdir(parents=True)
    (run_folder / "diary.txt").write_text("somebody's")
    process = run_cli("suite", suite, f"out={tmp_path / 'out'}", f"jobs={jobs}", "--json", code=1)
    result = json.loads(process.stdout.splitlines()[-1])
    assert len(result["runs"]) == 3 and result["table"]["tiny"]["mood"]["num_seeds"] == 1
    (failure,) = result["failures"]
    assert (failure["model"], failure["task"], failure["seed"]) == ("tiny", "mood", 1) and "contains other files" in failure[
        "error"
    ]
    assert "tiny on mood, seed 1: " in process.stderr and failure["error"] in process.stderr
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert scores["failures"] == result["failures"] and scores["num_pending"] == 0
    assert "tiny on mood, seed 1: " in parse_page((tmp_path / "out" / "report.html").read_bytes()).text
    (run_folder / "diary.txt").unlink()
    assert not run_cli_json("suite", suite, f"out={tmp_path / 'out'}")["failures"]


def test_suite_goes_on_if_its_first_run_fails_before_it_writes(suite, tmp_path, monkeypatch):
    """A process that is killed while it starts leaves no folder of its own."""
    finetune, failures = suite_module.finetune, ["its process was killed"]

    def fail_once(*args):
        if failures:
            raise UserError(failures.pop())
        return finetune(*args)

    monkeypatch.setattr(suite_module, "finetune", fail_once)
    run_cli("suite", suite, f"out={tmp_path / 'out'}", code=1)
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert len(scores["failures"]) == 1 and len(scores["runs"]) == 3 and scores["num_pending"] == 0


def test_suite_sorts_longest_runs_first_within_seed(suite, tmp_path):
    recipe = read_recipe(SuiteRecipe, suite, [f"out={tmp_path / 'out'}"])
    order = [
        (run.recipe.seed, run.task) for run in sort_longest_first(list(_plan_runs(recipe, tmp_path / "out")), recipe.seeds)
    ]
    assert order == [(0, "mood"), (0, "stars"), (1, "mood"), (1, "stars")]  # two epochs before one
    recipe = read_recipe(SuiteRecipe, suite, [f"out={tmp_path / 'out'}", "tasks.stars.train.epochs=9", "seeds=[1,0]"])
    order = [
        (run.recipe.seed, run.task) for run in sort_longest_first(list(_plan_runs(recipe, tmp_path / "out")), recipe.seeds)
    ]
    assert order == [(1, "stars"), (1, "mood"), (0, "stars"), (0, "mood")]


def test_suite_model_with_settings_and_printed_table(suite, tiny_model, tmp_path):
    text = suite.read_text().replace("epochs = 2, ", "steps = 2, ").replace("train = { epochs = 1 }", "")
    suite.write_text(text.replace("[every]", f'bare = {{ model = "{tiny_model}", random_init = true }}\n\n[every]'))
    process = run_cli("suite", suite, f"out={tmp_path / 'out'}", "seeds=[3]")
    rows = [line.split() for line in process.stderr.splitlines()]
    assert ["mood", "stars", "average"] in rows
    assert {row[0] for row in rows if len(row) == 4 and row[0] in ("tiny", "bare")} == {"tiny", "bare"}
    config = json.loads((tmp_path / "out" / "runs" / "bare" / "mood" / "seed-3" / "config.json").read_text())
    assert config["recipe"]["random_init"] and config["recipe"]["seed"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('task = "regress"', 'task = "regres"'),
         "models.tiny, tasks.stars: task = 'regres' is not valid; did you mean 'regress'?"),
        (("stars-dev.jsonl", "absent.jsonl"), "tasks.stars"),
        (('"accuracy", "matthews"', '"accuracy", "f2"'), "tasks.mood.metrics: f2 is not a metric of this task; choose"),
        (('"accuracy", "matthews"', "1"), "tasks.mood.metrics must be a list of metrics"),
        (("[tasks.mood]", '[tasks.mood]\nmetric_for_best_model = "f2"\ntrain.early_stopping_patience = 1'),
         "tasks.mood: metric_for_best_model=f2 is not a metric of this task"),
        (("max_length = 32", "max_length = 500"), "500 is more than the 64 positions of models.tiny"),
        (("max_length = 32", "max_lenght = 32"), "unknown key 'max_lenght'; did you mean 'max_length'?"),
        (("max_length = 32", "seed = 3"), "every.seed is set by the suite"),
        (("[tasks.mood]", "[tasks.mood]\nseeds = [3]"), "tasks.mood.seeds is set by the suite"),
        (("seeds = [0, 1]", "seeds = [1, 1]"), "contains duplicates"),
        (("seeds = [0, 1]", "seeds = []"), "at least one of models"),
        (("[tasks.mood]", '[tasks."a/b"]'), "tasks.a/b: the name is also that of a folder"),
        ((', dev = "', ', dve = "'), "unknown key 'data.dve'; did you mean 'data.dev'?"),
    ],
)  # fmt: skip
def test_invalid_suite_is_rejected_before_training(suite, tmp_path, monkeypatch, change, message):
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained"))
    text = suite.read_text()
    assert change[0] in text
    suite.write_text(text.replace(*change))
    assert message in run_cli_error("suite", suite, f"out={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


EARLY_STOPPING = ("max_length = 32\ntrain = {", "max_length = 32\ntrain = { early_stopping_patience = 1, eval_every = 2,")
NO_METRICS = ('metrics = ["accuracy", "matthews"]', "")


def replace_in_file(path, *changes):
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_suite_default_metric_is_metric_for_best_model(suite, tmp_path):
    replace_in_file(suite, EARLY_STOPPING, NO_METRICS, ("[tasks.mood]", '[tasks.mood]\nmetric_for_best_model = "f1_macro"'))
    result = run_cli_json("suite", suite, f"out={tmp_path / 'out'}", "seeds=[0]")
    metrics = {
        run["task"]: next(name for name, value in run["scores"].items() if value == run["score"]) for run in result["runs"]
    }
    assert metrics["stars"] == "pearson"
    mood = next(run for run in result["runs"] if run["task"] == "mood")
    assert mood["score"] == mood["scores"]["f1_macro"] != mood["scores"]["accuracy"]


def test_suite_rejects_different_metrics_in_one_column(suite, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained"))
    replace_in_file(
        suite,
        EARLY_STOPPING,
        NO_METRICS,
        ("[every]", f'other = {{ model = "{tiny_model}", metric_for_best_model = "f1_macro" }}\n\n[every]'),
    )
    message = run_cli_error("suite", suite, f"out={tmp_path / 'out'}")
    assert "models.other has the metric f1_macro, other models accuracy; set tasks.mood.metrics" in message


def test_suite_rejects_unknown_dev_label_before_training(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained"))
    write_jsonl(tmp_path / "mood-dev.jsonl", [{"text": "the way", "label": "goood"}])
    assert "'goood' is not a label of this task; did you mean 'good'" in run_cli_error(
        "suite", suite, f"out={tmp_path / 'out'}"
    )


def test_suite_requires_dev_file(suite, tmp_path):
    suite.write_text(suite.read_text().replace(f', dev = "{tmp_path}/mood-dev.jsonl"', ", validation_split = 0"))
    assert "tasks.mood: a suite needs a dev file; set data.dev" in run_cli_error("suite", suite, f"out={tmp_path / 'out'}")


def test_suite_rejects_runs_of_other_settings(suite, tmp_path, monkeypatch):
    command = ["suite", suite, f"out={tmp_path / 'out'}", "seeds=[0]"]
    run_cli(*command)
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained"))
    suite.write_text(suite.read_text().replace("learning_rate = 3e-3", "learning_rate = 1e-3"))
    assert "was created with other settings" in run_cli_error(*command)


def test_example_suite_recipe_plans_all_runs():
    recipe = read_recipe(SuiteRecipe, ROOT / "recipes" / "suite.toml")
    plan = list(_plan_runs(recipe, Path("out")))
    assert len(plan) == len(recipe.models) * len(recipe.tasks) * len(recipe.seeds)
    scratch = next(run for run in plan if run.model == "scratch" and run.task == "MRPC")
    assert scratch.recipe.random_init and scratch.recipe.train.epochs == 5 and scratch.recipe.train.learning_rate == 5e-5
    assert scratch.metrics == ("accuracy", "f1") and scratch.recipe.task.positive == "1"


def make_runs():
    rng = np.random.default_rng(0)
    return [SuiteRun(model, task, seed, {"f1": float(rng.random()), "accuracy": 0.5}, ("f1",))
            for seed in (0, 1, 2) for model in ("one", "two") for task in ("x", "y")]  # fmt: skip


def test_suite_table_cells_are_mean_and_sample_std():
    table = SuiteTable(("one", "two"), ("x", "y"), make_runs())
    by_seed = np.array(
        [[next(r.score for r in make_runs() if (r.model, r.task, r.seed) == ("one", t, s)) for t in "xy"] for s in range(3)]
    )
    cell = table.cell("one", "x")
    assert (cell.mean, cell.std) == pytest.approx((by_seed[:, 0].mean(), by_seed[:, 0].std(ddof=1)))
    average = table.cell("one", "average")
    assert (average.mean, average.std) == pytest.approx((by_seed.mean(), by_seed.mean(1).std(ddof=1)))


def test_suite_table_average_needs_every_task():
    runs = make_runs()[:-1]  # the last seed of model "two" lacks a task
    table = SuiteTable(("one", "two"), ("x", "y"), runs)
    assert table.cell("two", "average").num_seeds == 2 and table.cell("two", "x").num_seeds == 3
    first = SuiteTable(("one", "two"), ("x", "y"), runs[:1])
    assert first.cell("one", "average") is None and first.cell("two", "x") is None
    assert first.rows()[2] == ["two", "", "", ""]
    parse_page(render_page(first, 11))


def test_suite_table_shows_failed_cell():
    table = SuiteTable(
        ("one",), ("x", "y"), [SuiteRun("one", "y", 0, {"f1": 0.5}, ("f1",))], [SuiteFailure("one", "x", 0, "<no memory>")]
    )
    assert table.rows()[1] == ["one", "failed", "50.0", ""]
    assert "one on x, seed 0: <no memory>" in parse_page(render_page(table, 0)).text


def test_suite_table_shows_nan_as_dash():
    table = SuiteTable(("one",), ("x",), [SuiteRun("one", "x", 0, {"pearson": float("nan")}, ("pearson",))])
    assert table.rows()[1] == ["one", "–", "–"] and "–" in parse_page(render_page(table, 0)).text


def test_suite_best_of_errors_is_the_lowest_and_of_scores_and_errors_none():
    runs = [
        SuiteRun(model, task, 0, {metric: value}, (metric,), ("loss",))
        for model, value in (("one", 0.25), ("two", 0.75))
        for task, metric in (("x", "loss"), ("y", "f1"))
    ]
    table = SuiteTable(("one", "two"), ("x", "y"), runs)
    assert table.best_mean("x") == 0.25 and table.best_mean("y") == 0.75 and np.isnan(table.best_mean("average"))
    assert SuiteTable(("one", "two"), ("x",), runs[::2]).best_mean("average") == 0.25


def test_suite_page_shows_best_of_column_in_bold():
    page = render_page(SuiteTable(("one", "two"), ("x", "y"), make_runs()), 0).decode()
    assert page.count('<b class="best">') == 3
