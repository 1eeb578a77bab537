"""A race that is run again: results of another recipe are not reused, and an interrupted race is saved."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from bertsmith.config import from_dict
from bertsmith.console import Console
from bertsmith.racing import run as race
from bertsmith.racing.entries import build_entries, read_scores
from tests.support.racing import CAUSAL, SMALL, race_settings, write_files

MEMBERS = {"bert": {"model": SMALL}, "untrained": {"model": SMALL, "untrained": True}}
RUN = """
import json, sys
from bertsmith.config import from_dict
from bertsmith.racing.run import RaceRecipe, race
try:
    race(from_dict(RaceRecipe, json.load(open(sys.argv[1]))), quiet=True)
except KeyboardInterrupt:
    sys.exit(130)
"""
TIMEOUT = 90.0  # seconds until two processes have started training


@pytest.fixture
def settings(tmp_path):
    return race_settings(write_files(tmp_path / "data"), tmp_path / "out", members=MEMBERS)


def run_race(settings, **changes):
    result = race.race(from_dict(race.RaceRecipe, settings | changes), quiet=True)
    return {member["name"]: member for member in result["members"]}


def test_race_with_another_budget_shows_no_old_scores(settings):
    first, again = run_race(settings), run_race(settings, budget={"flops": 6e8})
    assert "a model of another recipe" in again["bert"]["errors"][0]
    assert "flops" not in again["bert"] and again["bert"]["scores"]["tuned"]["about"] is None
    assert again["untrained"] == first["untrained"]  # not trained, whatever the budget


def test_race_scores_of_other_settings_or_model_are_not_read(settings):
    run_race(settings)
    recipe = from_dict(race.RaceRecipe, settings)
    (run,) = build_entries(recipe, Path(recipe.out), Console(True))[0].runs["tuned"]["about"]
    assert read_scores(run) is not None
    assert read_scores(msgspec.structs.replace(run, max_length=16)) is None
    manifest = Path(run.model) / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    assert read_scores(run) is None


def test_race_results_do_not_depend_on_saving_and_workers(settings):
    first = run_race(settings)
    every = settings["every"] | {"train": settings["every"]["train"] | {"save_every": 7, "workers": 1, "log_every": 3}}
    assert run_race(settings, every=every) == first


def test_sigterm_saves_race_members_in_training(settings, tmp_path):
    members = {"bert": {"model": SMALL}, "left": {"model": CAUSAL, "objective": "clm"}}
    every = settings["every"] | {"train": settings["every"]["train"] | {"save_every": 10**9, "workers": 1}}
    path = tmp_path / "race.json"
    path.write_text(
        json.dumps(settings | {"members": members, "every": every, "tasks": {}, "jobs": 2, "budget": {"flops": 1e15}})
    )
    logs = [tmp_path / "out" / "members" / name / "metrics.jsonl" for name in members]
    command = [sys.executable, "-c", RUN, str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + TIMEOUT
        while not all(log.exists() and log.stat().st_size for log in logs) and time.monotonic() < deadline:
            time.sleep(0.2)
        for _ in range(2):  # as `timeout` does: to the process, and to its group
            os.killpg(process.pid, signal.SIGTERM)
        _, stderr = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130 and "leaked" not in stderr and "Traceback" not in stderr
    for log in logs:
        newest = max(int(folder.name.removeprefix("step-")) for folder in log.parent.glob("state/step-*"))
        assert newest >= read_json_lines(log)[-1]["step"] > 0


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
