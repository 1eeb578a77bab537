"""Fine-tuning with no key set against tuned settings: the same model, files and seeds.

python -m benchmarks defaults suite=FILE.toml [sets=a,b] [seeds=0,1,2] [out=FOLDER] [minutes=9] [jobs=6]
                              [device=cuda precision=bf16]

The suite has a table per set: task, model, data and metric, and `tuned`, the keys of `finetune` that a search found best (see
defaults.toml). Both sides get the dev file, which selects the best epoch. Every score is appended to out/results.jsonl and not
computed again; runs that have not finished after `minutes` are left out of the table.
"""

import json
import statistics
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from bertsmith import api
from bertsmith.config import Config, from_dict
from bertsmith.processes import Job, run_jobs

from .inputs import BenchmarkInputs

Result = dict[str, Any]
SIDES = ("default", "tuned")


class LabelledSet(Config, frozen=True):
    """A table of the suite."""

    task: Annotated[str | dict[str, Any], "as in finetune"]
    model: Annotated[str, "shipped model, or checkpoint"]
    data: Annotated[dict[str, Any], "as in finetune; paths are relative to the suite"]
    metric: Annotated[str, "metric to compare"]
    tuned: Annotated[dict[str, Any], "other keys of finetune, such as { max_length = 128, train = { epochs = 6 } }"]


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    sets = _read_sets(Path(bench.options["suite"]), bench.options.get("sets"))
    out = Path(bench.options.get("out", bench.folder))
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + 60 * float(bench.options.get("minutes", "6000"))
    keys = {name: bench.options[name] for name in ("device", "precision") if name in bench.options}
    finished = {(result["set"], result["side"], result["seed"]) for result in _read_results(out)}
    jobs = []
    for seed in map(int, bench.options.get("seeds", "0,1,2").split(",")):
        for name, labelled_set in sets.items():
            for side in SIDES:
                if (name, side, seed) not in finished:
                    folder = bench.folder / f"{name}-{side}-{seed}"
                    jobs.append(Job(f"{name}, {side}, seed {seed}", _run,
                                    (name, labelled_set, side, seed, keys, str(folder), str(out), deadline)))  # fmt: skip
    run_jobs(jobs, bench.int_option("jobs", 1), _report)
    results = _read_results(out)
    return [_format_row(name, labelled_set.metric, [result for result in results if result["set"] == name])
            for name, labelled_set in sets.items()]  # fmt: skip


def _read_sets(suite: Path, names: str | None) -> dict[str, LabelledSet]:
    tables = tomllib.loads(suite.read_text(encoding="utf-8"))
    sets = {name: from_dict(LabelledSet, tables[name], f"{suite}, {name}") for name in (names.split(",") if names else tables)}
    return {
        name: msgspec.structs.replace(
            labelled_set,
            data={
                key: str(suite.parent / value) if key in ("train", "dev") else value for key, value in labelled_set.data.items()
            },
        )
        for name, labelled_set in sets.items()
    }


def _run(
    name: str, labelled_set: LabelledSet, side: str, seed: int, train: dict[str, Any], folder: str, out: str, deadline: float
) -> None:
    if time.time() > deadline:
        return
    settings = labelled_set.tuned if side == "tuned" else {}
    settings = settings | {"train": settings.get("train", {}) | train}
    start = time.monotonic()
    result = api.finetune(
        task=labelled_set.task, model=labelled_set.model, data=labelled_set.data, seed=seed, out=folder, quiet=True, **settings
    )
    row = {"set": name, "side": side, "seed": seed, "score": result.scores[labelled_set.metric], "step": result["step"],
           "best_step": result["best_step"], "seconds": round(time.monotonic() - start, 1)}  # fmt: skip
    with (Path(out) / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _report(job: Job, error: str | None) -> list[Job]:
    print(job.name if error is None else f"{job.name}: {error}", flush=True)
    return []


def _read_results(out: Path) -> list[Result]:
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _format_row(name: str, metric: str, results: list[Result]) -> tuple[str, str, str, str, str]:
    """Mean and standard deviation of both sides in percent; the goal: at most one point below the tuned settings."""
    scores = {side: [100 * result["score"] for result in results if result["side"] == side] for side in SIDES}
    cells = [f"{statistics.mean(values):.1f} ± {_stdev(values):.1f}" if values else "none" for values in scores.values()]
    both = all(scores.values())
    difference = f"{statistics.mean(scores['default']) - statistics.mean(scores['tuned']):+.1f}" if both else ""
    return f"{name}, {metric}, seeds: {len(scores['default'])} and {len(scores['tuned'])}", *cells, difference, ">= -1.0"


def _stdev(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
