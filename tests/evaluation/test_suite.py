"""Suites: one table of tasks, models and seeds, refused before any training or gone on with after any interruption."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest

from bertsmith.config import read_recipe
from bertsmith.errors import Interrupted
from bertsmith.evaluation.suite import SuiteFailure, SuiteRun, SuiteTable, render_page
from bertsmith.finetuning.suite import SuiteRecipe, _plan_runs, sort_longest_first
from bertsmith.train.trainer import Trainer
from tests.evaluation.test_report import checked
from tests.journeys.test_finetuning import classified, rated, written
from tests.journeys.test_pretraining import ROOT, answer, ran, refused

SUITE = """
seeds = [0, 1]

[models]
tiny = "{tiny}"

[every]
length = 32
train = {{ batch_tokens = 512, rate = 3e-3, epochs = 2, save_every = 5 }}

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
def suite(tiny, tmp_path):
    for name, make in (("mood", classified), ("stars", rated)):
        rows = [make(np.random.default_rng(i)) for i in range(200)]
        written(tmp_path / f"{name}.jsonl", rows[:150]), written(tmp_path / f"{name}-dev.jsonl", rows[150:])
    path = tmp_path / "suite.toml"
    path.write_text(SUITE.format(tiny=tiny, folder=tmp_path), encoding="utf-8")
    return path


def dying(monkeypatch, runs):
    """Training that stops in the middle of the run after so many whole ones."""
    step, fits, begun = Trainer._step, Trainer.fit, []

    def fit(self, *rest):
        begun.append(self)
        return fits(self, *rest)

    def stop(self, batch):
        if len(begun) > runs and self.progress.step == 7:
            raise Interrupted("as if killed")
        return step(self, batch)

    monkeypatch.setattr(Trainer, "fit", fit)
    monkeypatch.setattr(Trainer, "_step", stop)


def test_an_interrupted_suite_goes_on_to_the_same_table(suite, tmp_path, monkeypatch):
    straight = answer("suite", suite, f"out={tmp_path / 'straight'}")
    with monkeypatch.context() as patched:
        dying(patched, 2)
        ran("suite", suite, f"out={tmp_path / 'killed'}", code=130)
    half = json.loads((tmp_path / "killed" / "scores.json").read_text())
    assert half["left"] == 2 and len(half["runs"]) == 2
    assert "still to be done" in checked((tmp_path / "killed" / "report.html").read_bytes()).text
    told = ran("suite", suite, f"out={tmp_path / 'killed'}", "--json")
    assert told.stderr.count("is there already") == 2
    found = json.loads(told.stdout.splitlines()[-1])
    assert found["table"] == straight["table"] and found["runs"] == straight["runs"]
    one, two = (run["scores"] for run in found["runs"] if run["task"] == "mood")
    scores = [(run["accuracy"] + run["matthews"]) / 2 for run in (one, two)]
    cell = found["table"]["tiny"]["mood"]
    assert (cell["mean"], cell["deviation"], cell["seeds"]) == pytest.approx((mean(scores), stdev(scores), 2))
    text = checked((tmp_path / "killed" / "report.html").read_bytes()).text
    assert f"{100 * cell['mean']:.1f} ± {100 * cell['deviation']:.1f}" in text and "still to be done" not in text
    assert json.loads((tmp_path / "killed" / "scores.json").read_text())["left"] == 0


def test_jobs_change_nothing_but_the_time(suite, tmp_path):
    alone, both = (answer("suite", suite, f"out={tmp_path / str(jobs)}", f"jobs={jobs}") for jobs in (1, 2))
    assert alone["table"] == both["table"] and alone["runs"] == both["runs"] and len(both["runs"]) == 4
    written = [json.loads((tmp_path / str(jobs) / "scores.json").read_text()) for jobs in (1, 2)]
    assert written[0] == written[1] and written[0]["left"] == 0 and not written[0]["faults"]


def test_jobs_that_were_interrupted_go_on(suite, tmp_path):
    words, out = [sys.executable, "-m", "bertsmith", "suite", str(suite), f"out={tmp_path / 'out'}", "jobs=2"], tmp_path / "out"
    going = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    while going.poll() is None and not (out / "scores.json").exists():
        time.sleep(0.05)
    going.send_signal(signal.SIGINT)
    assert going.wait(60) in (0, 130)  # it may have been quick
    done = json.loads((out / "scores.json").read_text())["runs"]
    found = answer("suite", suite, f"out={out}", "jobs=2")
    assert 1 <= len(done) <= len(found["runs"]) == 4 and all(one in found["runs"] for one in done)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_is_told_of_and_stops_no_other(suite, tmp_path, jobs):
    taken = tmp_path / "out" / "runs" / "tiny" / "mood" / "seed-1"
    taken.mkdir(parents=True)
    (taken / "diary.txt").write_text("somebody's")
    told = ran("suite", suite, f"out={tmp_path / 'out'}", f"jobs={jobs}", "--json", code=1)
    found = json.loads(told.stdout.splitlines()[-1])
    assert len(found["runs"]) == 3 and found["table"]["tiny"]["mood"]["seeds"] == 1
    (fault,) = found["faults"]
    assert (fault["model"], fault["task"], fault["seed"]) == ("tiny", "mood", 1) and "holds other things" in fault["error"]
    assert "tiny on mood, seed 1: " in told.stderr and fault["error"] in told.stderr
    kept = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert kept["faults"] == found["faults"] and kept["left"] == 0
    assert "tiny on mood, seed 1: " in checked((tmp_path / "out" / "report.html").read_bytes()).text
    (taken / "diary.txt").unlink()
    assert not answer("suite", suite, f"out={tmp_path / 'out'}")["faults"]


def test_most_work_comes_first_within_a_seed(suite, tmp_path):
    recipe = read_recipe(SuiteRecipe, suite, [f"out={tmp_path / 'out'}"])
    order = [
        (one.recipe.seed, one.task) for one in sort_longest_first(list(_plan_runs(recipe, tmp_path / "out")), recipe.seeds)
    ]
    assert order == [(0, "mood"), (0, "stars"), (1, "mood"), (1, "stars")]  # two epochs, and one
    recipe = read_recipe(SuiteRecipe, suite, [f"out={tmp_path / 'out'}", "tasks.stars.train.epochs=9", "seeds=[1,0]"])
    order = [
        (one.recipe.seed, one.task) for one in sort_longest_first(list(_plan_runs(recipe, tmp_path / "out")), recipe.seeds)
    ]
    assert order == [(1, "stars"), (1, "mood"), (0, "stars"), (0, "mood")]


def test_a_model_may_be_a_table_and_the_terminal_shows_the_result(suite, tiny, tmp_path):
    text = suite.read_text().replace("epochs = 2, ", "steps = 2, ").replace("train = { epochs = 1 }", "")
    suite.write_text(text.replace("[every]", f'bare = {{ model = "{tiny}", scratch = true }}\n\n[every]'))
    told = ran("suite", suite, f"out={tmp_path / 'out'}", "seeds=[3]")
    rows = [line.split() for line in told.stderr.splitlines()]
    assert ["mood", "stars", "average"] in rows
    assert {row[0] for row in rows if len(row) == 4 and row[0] in ("tiny", "bare")} == {"tiny", "bare"}
    config = json.loads((tmp_path / "out" / "runs" / "bare" / "mood" / "seed-3" / "config.json").read_text())
    assert config["recipe"]["scratch"] and config["recipe"]["seed"] == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('task = "regress"', 'task = "regres"'), "models.tiny, tasks.stars: task = 'regres' is not known"),
        (("stars-dev.jsonl", "absent.jsonl"), "tasks.stars"),
        (('"accuracy", "matthews"', '"accuracy", "f2"'), "tasks.mood.metrics: f2 is not a score of this task, which has"),
        (('"accuracy", "matthews"', "1"), "tasks.mood.metrics is not a list of names"),
        (("[tasks.mood]", '[tasks.mood]\nbest = "f2"\ntrain.stop = 1'), "tasks.mood: best=f2 is not a score of this task"),
        (("length = 32", "length = 500"), "length 500 is more than the 64 positions of models.tiny"),
        (("length = 32", "lenght = 32"), "lenght is not known; did you mean 'length'"),
        (("length = 32", "seed = 3"), "every.seed is for the suite to say"),
        (("[tasks.mood]", "[tasks.mood]\nseeds = [3]"), "tasks.mood.seeds is for the suite to say"),
        (("seeds = [0, 1]", "seeds = [1, 1]"), "name one twice"),
        (("seeds = [0, 1]", "seeds = []"), "at least one of each"),
        (("[tasks.mood]", '[tasks."a/b"]'), "tasks.a/b: the name is that of a folder too"),
        ((', dev = "', ', dve = "'), "data.dve is not known; did you mean 'dev'"),
    ],
)  # fmt: skip
def test_a_bad_suite_is_refused_before_any_training(suite, tmp_path, monkeypatch, change, told):
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained"))
    text = suite.read_text()
    assert change[0] in text
    suite.write_text(text.replace(*change))
    assert told in refused("suite", suite, f"out={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


STOP = ("length = 32\ntrain = {", "length = 32\ntrain = { stop = 1, eval_every = 2,")
BARE = ('metrics = ["accuracy", "matthews"]', "")


def changed(suite, *changes):
    text = suite.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    suite.write_text(text)


def test_a_task_without_metrics_is_measured_by_what_its_runs_choose_by(suite, tmp_path):
    changed(suite, STOP, BARE, ("[tasks.mood]", '[tasks.mood]\nbest = "f1_macro"'))
    found = answer("suite", suite, f"out={tmp_path / 'out'}", "seeds=[0]")
    taken = {run["task"]: next(name for name, value in run["scores"].items() if value == run["score"]) for run in found["runs"]}
    assert taken["stars"] == "pearson"
    mood = next(run for run in found["runs"] if run["task"] == "mood")
    assert mood["score"] == mood["scores"]["f1_macro"] != mood["scores"]["accuracy"]


def test_one_column_has_one_measure(suite, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained"))
    changed(suite, STOP, BARE, ("[every]", f'other = {{ model = "{tiny}", best = "f1_macro" }}\n\n[every]'))
    told = refused("suite", suite, f"out={tmp_path / 'out'}")
    assert "models.other is to be measured by f1_macro, others by accuracy; give tasks.mood.metrics" in told


def test_a_label_that_only_the_dev_file_has_is_found_first(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained"))
    written(tmp_path / "mood-dev.jsonl", [{"text": "the way", "label": "goood"}])
    assert "'goood' is not a label of this task; did you mean 'good'" in refused("suite", suite, f"out={tmp_path / 'out'}")


def test_a_task_without_a_dev_file_is_refused(suite, tmp_path):
    suite.write_text(suite.read_text().replace(f', dev = "{tmp_path}/mood-dev.jsonl"', ""))
    assert "tasks.mood: a suite is judged on dev files; give data.dev" in refused("suite", suite, f"out={tmp_path / 'out'}")


def test_runs_of_other_settings_are_not_taken_for_these(suite, tmp_path, monkeypatch):
    words = ["suite", suite, f"out={tmp_path / 'out'}", "seeds=[0]"]
    ran(*words)
    monkeypatch.setattr(Trainer, "fit", lambda *_: pytest.fail("trained"))
    suite.write_text(suite.read_text().replace("rate = 3e-3", "rate = 1e-3"))
    assert "was made by other settings" in refused(*words)


def test_the_example_is_a_suite():
    recipe = read_recipe(SuiteRecipe, ROOT / "recipes" / "suite.toml")
    plan = list(_plan_runs(recipe, Path("out")))
    assert len(plan) == len(recipe.models) * len(recipe.tasks) * len(recipe.seeds)
    scratch = next(one for one in plan if one.model == "scratch" and one.task == "MRPC")
    assert scratch.recipe.scratch and scratch.recipe.train.epochs == 5 and scratch.recipe.train.rate == 5e-5
    assert scratch.metrics == ("accuracy", "f1") and scratch.recipe.task.positive == "1"


def runs():
    rng = np.random.default_rng(0)
    return [SuiteRun(model, task, seed, {"f1": float(rng.random()), "accuracy": 0.5}, ("f1",))
            for seed in (0, 1, 2) for model in ("one", "two") for task in ("x", "y")]  # fmt: skip


def test_cells_are_means_with_the_deviation_of_a_sample():
    found = SuiteTable(("one", "two"), ("x", "y"), runs())
    by_seed = np.array(
        [[next(r.score for r in runs() if (r.model, r.task, r.seed) == ("one", t, s)) for t in "xy"] for s in range(3)]
    )
    cell = found.cell("one", "x")
    assert (cell.mean, cell.std) == pytest.approx((by_seed[:, 0].mean(), by_seed[:, 0].std(ddof=1)))
    average = found.cell("one", "average")
    assert (average.mean, average.std) == pytest.approx((by_seed.mean(), by_seed.mean(1).std(ddof=1)))


def test_the_average_waits_for_every_task():
    some = runs()[:-1]  # the last seed of the second model lacks a task
    found = SuiteTable(("one", "two"), ("x", "y"), some)
    assert found.cell("two", "average").num_seeds == 2 and found.cell("two", "x").num_seeds == 3
    first = SuiteTable(("one", "two"), ("x", "y"), some[:1])
    assert first.cell("one", "average") is None and first.cell("two", "x") is None
    assert first.rows()[2] == ["two", "", "", ""]
    checked(render_page(first, 11))


def test_a_cell_of_which_only_a_fault_is_known_says_so():
    found = SuiteTable(
        ("one",), ("x", "y"), [SuiteRun("one", "y", 0, {"f1": 0.5}, ("f1",))], [SuiteFailure("one", "x", 0, "<no memory>")]
    )
    assert found.rows()[1] == ["one", "failed", "50.0", ""]
    assert "one on x, seed 0: <no memory>" in checked(render_page(found, 0)).text


def test_a_score_that_is_none_is_a_dash():
    found = SuiteTable(("one",), ("x",), [SuiteRun("one", "x", 0, {"pearson": float("nan")}, ("pearson",))])
    assert found.rows()[1] == ["one", "–", "–"] and "–" in checked(render_page(found, 0)).text


def test_the_best_of_a_column_is_bold():
    told = render_page(SuiteTable(("one", "two"), ("x", "y"), runs()), 0).decode()
    assert told.count('<b class="best">') == 3
