"""Scores against transformers' example recipe: the same weights, data, hyper-parameters and seeds, as a table.

python -m benchmarks scores suite=FILE.toml [tasks=a,b] [seeds=0,1,2] [out=FOLDER] [minutes=9] [jobs=6]
                            [device=cuda precision=bf16]

The suite has a table a task, with the keys of scoring.Case; its paths are beside it. Every result is a line of
out/results.jsonl as soon as it is there, and is not asked for again; what has not ended after `minutes` is given up, and the
table is of what has.

Taggers are compared as each side answers: ours with the best legal tags, theirs with each token's best. The line of a result
has the score of both ways, `legal` and `argmax`, for either side.
"""

import json
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import msgspec

from bertsmith import api
from bertsmith.config import from_dict, to_dict

from .material import BenchmarkInputs
from .scoring import Case, ScoringJob

Result = dict[str, Any]


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    if "suite" not in bench.options:
        sys.exit("scores needs suite=FILE.toml, a table a task; see benchmarks/scores.py")
    cases = _read_cases(Path(bench.options["suite"]), bench.options.get("tasks"))
    out = Path(bench.options.get("out", bench.folder))
    out.mkdir(parents=True, exist_ok=True)
    known = _read_results(out)
    left = [(name, job) for name, job in _build_jobs(bench, cases) if (name, job.side, job.seed) not in known]
    results = [*known.values(), *_run_jobs(bench, left, out)]
    return [_format_row(name, case, [one for one in results if one["task"] == name]) for name, case in cases.items()]


def _read_results(out: Path) -> dict[tuple[str, str, int], Result]:
    """Results of an earlier sitting; what failed or had no time is asked again."""
    path = out / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [one for one in map(json.loads, lines) if "error" not in one]
    return {(one["task"], one["side"], one["seed"]): one for one in found}


def _read_cases(suite: Path, task_names: str | None) -> dict[str, Case]:
    tables = tomllib.loads(suite.read_text(encoding="utf-8"))
    names = task_names.split(",") if task_names else list(tables)
    cases = {name: from_dict(Case, tables[name], f"{suite}, {name}") for name in names}
    placed = {name: {key: str(suite.parent / getattr(case, key)) for key in ("train", "dev", "model")}
              for name, case in cases.items()}  # fmt: skip
    return {name: msgspec.structs.replace(case, **placed[name]) for name, case in cases.items()}


def _build_jobs(bench: BenchmarkInputs, cases: dict[str, Case]) -> Iterator[tuple[str, ScoringJob]]:
    """Task by task, both sides of a seed beside each other."""
    how = {"device": bench.options.get("device", "cpu"), "precision": bench.options.get("precision", "fp32")}
    for name, case in cases.items():
        imported = bench.folder / f"{Path(case.model).name}-{case.attention_dropout:g}"
        api.import_model(source=case.model, out=str(imported), attention_dropout=case.attention_dropout, quiet=True)
        for seed in map(int, bench.options.get("seeds", "0,1,2").split(",")):
            for side, model in (("ours", imported), ("theirs", case.model)):
                folder = bench.folder / f"{name}-{side}-{seed}"
                yield name, ScoringJob(case=case, side=side, model=str(model), folder=str(folder), seed=seed, **how)


def _run_jobs(bench: BenchmarkInputs, jobs: list[tuple[str, ScoringJob]], out: Path) -> Iterator[Result]:
    """As they come; each in a process of its own, so that one that fails fails alone."""
    end = time.monotonic() + 60 * float(bench.options.get("minutes", "6000"))
    with ThreadPoolExecutor(bench.int_option("jobs", 1)) as pool:
        asked = [pool.submit(_run_job, name, job, end) for name, job in jobs]
        for done in as_completed(asked):
            result = done.result()
            with (out / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(json.dumps(result)[:400], flush=True)
            yield result


def _run_job(name: str, job: ScoringJob, deadline: float) -> Result:
    facts: Result = {"task": name, "side": job.side, "seed": job.seed}
    start = time.monotonic()
    Path(job.folder).mkdir(parents=True)
    try:
        words = [sys.executable, "-m", "benchmarks.scoring", json.dumps(to_dict(job))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=max(0.01, deadline - start))
    except subprocess.TimeoutExpired:
        return facts | {"error": "there was no time left"}
    facts["seconds"] = round(time.monotonic() - start, 1)
    if done.returncode:
        return facts | {"error": done.stderr[-2000:]}
    return facts | json.loads(done.stdout.splitlines()[-1])


def _format_row(name: str, case: Case, results: list[Result]) -> tuple[str, str, str, str, str]:
    """The mean and its deviation on both sides, with the speed there; ours may be lower by one deviation of theirs."""
    ours, theirs = ([one for one in results if one["side"] == side and "error" not in one] for side in ("ours", "theirs"))
    what = f"{name}, {case.metric}, seeds: {len(ours)} and {len(theirs)}"
    if not ours or not theirs:
        return what, _format_scores(ours, case.metric), _format_scores(theirs, case.metric), "", ""
    means = [statistics.mean(one[case.metric] for one in side) for side in (ours, theirs)]
    spread = _stdev([one[case.metric] for one in theirs])
    return (
        what,
        _format_scores(ours, case.metric),
        _format_scores(theirs, case.metric),
        f"{means[0] - means[1]:+.4f}",
        f">= {-spread:.4f}",
    )


def _format_scores(results: list[Result], metric: str) -> str:
    if not results:
        return "none"
    scores, speeds = [one[metric] for one in results], [one["examples_per_second"] for one in results]
    return f"{statistics.mean(scores):.4f} ± {_stdev(scores):.4f} ({statistics.mean(speeds):,.0f} examples/s)"


def _stdev(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
