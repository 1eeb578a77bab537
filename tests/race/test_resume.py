"""A race that is run again: what another recipe made is not taken for its own, and what was stopped goes on."""

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
from bertsmith.race import run as race
from bertsmith.race.entries import build_entries, read_scores
from tests.race.builders import CAUSAL, SMALL, files, settings

MEMBERS = {"bert": {"model": SMALL}, "untrained": {"model": SMALL, "untrained": True}}
RUN = """
import json, sys
from bertsmith.config import parse
from bertsmith.race.run import RaceRecipe, race
try:
    race(parse(RaceRecipe, json.load(open(sys.argv[1]))), quiet=True)
except KeyboardInterrupt:
    sys.exit(130)
"""
PATIENCE = 90.0  # seconds until two processes have begun to learn


@pytest.fixture
def told(tmp_path):
    return settings(files(tmp_path / "data"), tmp_path / "out", members=MEMBERS)


def ran(told, **changes):
    found = race.race(from_dict(race.RaceRecipe, told | changes), quiet=True)
    return {one["name"]: one for one in found["members"]}


def test_another_budget_shows_no_old_scores(told):
    first, again = ran(told), ran(told, budget={"flops": 6e8})
    assert "made by another recipe" in again["bert"]["faults"][0]
    assert "flops" not in again["bert"] and again["bert"]["scores"]["tuned"]["about"] is None
    assert again["untrained"] == first["untrained"]  # it learns nothing, whatever the budget


def test_scores_of_other_settings_or_another_model_are_not_read(told):
    ran(told)
    recipe = from_dict(race.RaceRecipe, told)
    (run,) = build_entries(recipe, Path(recipe.out), Console(True))[0].runs["tuned"]["about"]
    assert read_scores(run) is not None
    assert read_scores(msgspec.structs.replace(run, length=16)) is None
    manifest = Path(run.model) / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    assert read_scores(run) is None


def test_how_the_work_is_done_may_change(told):
    first = ran(told)
    every = told["every"] | {"train": told["every"]["train"] | {"save_every": 7, "workers": 1, "log_every": 3}}
    assert ran(told, every=every) == first


def test_a_race_that_is_asked_to_stop_saves_members_in_flight(told, tmp_path):
    members = {"bert": {"model": SMALL}, "left": {"model": CAUSAL, "objective": "causal"}}
    every = told["every"] | {"train": told["every"]["train"] | {"save_every": 10**9, "workers": 1}}
    path = tmp_path / "race.json"
    path.write_text(json.dumps(told | {"members": members, "every": every, "tasks": {}, "jobs": 2, "budget": {"flops": 1e15}}))
    logs = [tmp_path / "out" / "members" / name / "metrics.jsonl" for name in members]
    words = [sys.executable, "-c", RUN, str(path)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        until = time.monotonic() + PATIENCE
        while not all(log.exists() and log.stat().st_size for log in logs) and time.monotonic() < until:
            time.sleep(0.2)
        for _ in range(2):  # as `timeout` does: to the process, and to its group
            os.killpg(running.pid, signal.SIGTERM)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130 and "leaked" not in said and "Traceback" not in said
    for log in logs:
        newest = max(int(one.name.removeprefix("step-")) for one in log.parent.glob("state/step-*"))
        assert newest >= read_json_lines(log)[-1]["step"] > 0


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
