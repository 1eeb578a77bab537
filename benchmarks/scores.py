"""Fine-tuning scores against transformers' example scripts: the same weights, data, hyper-parameters and seeds.

python -m benchmarks scores suite=FILE.toml [tasks=a,b] [seeds=0,1,2] [out=FOLDER] [minutes=9] [jobs=6]
                            [device=cuda precision=bf16]

The suite has a table per task, with the keys of scoring.Case; its paths are relative to the file. Every result is appended to
out/results.jsonl and not computed again; jobs that have not finished after `minutes` are left out of the table.

Taggers are compared with each library's own decoding: constrained by the tag scheme in bertsmith, argmax per token in
transformers. Each result also has the scores of both decodings, `constrained` and `argmax`.
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

from .inputs import BenchmarkInputs
from .scoring import Case, ScoringJob

Result = dict[str, Any]


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    cases = _read_cases(Path(bench.options["suite"]), bench.options.get("tasks"))
    out = Path(bench.options.get("out", bench.folder))
    out.mkdir(parents=True, exist_ok=True)
    finished = _read_results(out)
    remaining = [(name, job) for name, job in _build_jobs(bench, cases) if (name, job.library, job.seed) not in finished]
    results = [*finished.values(), *_run_jobs(bench, remaining, out)]
    return [_format_row(name, case, [result for result in results if result["task"] == name]) for name, case in cases.items()]


def _read_results(out: Path) -> dict[tuple[str, str, int], Result]:
    """Results of earlier runs by (task, library, seed); failed ones are left out, to be computed again."""
    path = out / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = [result for result in map(json.loads, lines) if "error" not in result]
    return {(result["task"], result["library"], result["seed"]): result for result in results}


def _read_cases(suite: Path, task_names: str | None) -> dict[str, Case]:
    tables = tomllib.loads(suite.read_text(encoding="utf-8"))
    names = task_names.split(",") if task_names else list(tables)
    cases = {name: from_dict(Case, tables[name], f"{suite}, {name}") for name in names}
    paths = {name: {key: str(suite.parent / getattr(case, key)) for key in ("train", "dev", "model")}
              for name, case in cases.items()}  # fmt: skip
    return {name: msgspec.structs.replace(case, **paths[name]) for name, case in cases.items()}


def _build_jobs(bench: BenchmarkInputs, cases: dict[str, Case]) -> Iterator[tuple[str, ScoringJob]]:
    """Jobs by task and seed, both libraries of a seed next to each other."""
    device_settings = {"device": bench.options.get("device", "cpu"), "precision": bench.options.get("precision", "fp32")}
    for name, case in cases.items():
        imported = bench.folder / f"{Path(case.model).name}-{case.attention_dropout:g}"
        api.import_model(source=case.model, out=str(imported), attention_dropout=case.attention_dropout, quiet=True)
        for seed in map(int, bench.options.get("seeds", "0,1,2").split(",")):
            for library, model in (("bertsmith", imported), ("transformers", case.model)):
                folder = bench.folder / f"{name}-{library}-{seed}"
                yield (
                    name,
                    ScoringJob(case=case, library=library, model=str(model), folder=str(folder), seed=seed, **device_settings),
                )


def _run_jobs(bench: BenchmarkInputs, jobs: list[tuple[str, ScoringJob]], out: Path) -> Iterator[Result]:
    """Results as they come; each job runs in a process of its own, so that a failure stops no other."""
    deadline = time.monotonic() + 60 * float(bench.options.get("minutes", "6000"))
    with ThreadPoolExecutor(bench.int_option("jobs", 1)) as pool:
        futures = [pool.submit(_run_job, name, job, deadline) for name, job in jobs]
        for future in as_completed(futures):
            result = future.result()
            with (out / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(json.dumps(result)[:400], flush=True)
            yield result


def _run_job(name: str, job: ScoringJob, deadline: float) -> Result:
    facts: Result = {"task": name, "library": job.library, "seed": job.seed}
    start = time.monotonic()
    Path(job.folder).mkdir(parents=True)
    try:
        command = [sys.executable, "-m", "benchmarks.scoring", json.dumps(to_dict(job))]
        process = subprocess.run(command, capture_output=True, text=True, timeout=max(0.01, deadline - start))
    except subprocess.TimeoutExpired:
        return facts | {"error": "time limit reached"}
    facts["seconds"] = round(time.monotonic() - start, 1)
    if process.returncode:
        return facts | {"error": process.stderr[-2000:]}
    return facts | json.loads(process.stdout.splitlines()[-1])


def _format_row(name: str, case: Case, results: list[Result]) -> tuple[str, str, str, str, str]:
    """Mean, standard deviation and speed of both libraries; the goal: at most one standard deviation below transformers."""
    ours, theirs = (
        [result for result in results if result["library"] == library and "error" not in result]
        for library in ("bertsmith", "transformers")
    )
    label = f"{name}, {case.metric}, seeds: {len(ours)} and {len(theirs)}"
    if not ours or not theirs:
        return label, _format_scores(ours, case.metric), _format_scores(theirs, case.metric), "", ""
    means = [statistics.mean(result[case.metric] for result in group) for group in (ours, theirs)]
    tolerance = _stdev([result[case.metric] for result in theirs])
    return (
        label,
        _format_scores(ours, case.metric),
        _format_scores(theirs, case.metric),
        f"{means[0] - means[1]:+.4f}",
        f">= {-tolerance:.4f}",
    )


def _format_scores(results: list[Result], metric: str) -> str:
    if not results:
        return "none"
    scores, speeds = [result[metric] for result in results], [result["examples_per_second"] for result in results]
    return f"{statistics.mean(scores):.4f} ± {_stdev(scores):.4f} ({statistics.mean(speeds):,.0f} examples/s)"


def _stdev(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
