"""Run families of attacks and print one table."""

import gc
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: forked children, without the threads of their parent, would wait for ever

from tests.attacks.artifacts import Artifacts, build_artifacts
from tests.attacks.harness import run_case
from tests.attacks.stages import list_stages
from tests.support.cli import run_cli

FAMILIES = (
    "signals", "resources", "disks", "kills", "deaths", "workers", "folders", "damage", "keys", "texts", "places", "links",
    "escapes",
)  # fmt: skip
SHOWN = 40  # problems printed for each family


@dataclass(frozen=True)
class Plan:
    """How many cases of a family run (0: all that it plans), from which seed, and for how many minutes at most."""

    count: int
    seed: int
    minutes: float


@dataclass
class Row:
    """What happened in a family."""

    name: str
    cases: int = 0
    processes: int = 0  # cases in which a process of its own was disturbed
    tracebacks: int = 0
    hangs: int = 0
    losses: int = 0
    other: int = 0
    peak_memory: int = 0
    seconds: float = 0.0

    @property
    def problems(self) -> int:
        return self.tracebacks + self.hangs + self.losses + self.other

    def add_problem(self, problem: str) -> None:
        kinds = (("traceback", "tracebacks"), ("hang", "hangs"), ("changed", "losses"), ("lost", "losses"))
        name = next((name for prefix, name in kinds if problem.startswith(prefix)), "other")
        setattr(self, name, getattr(self, name) + 1)

    def __str__(self) -> str:
        counts = (self.cases, self.processes, self.tracebacks, self.hangs, self.losses, self.other)
        memory, seconds = f"{self.peak_memory / 2**20:.0f}", f"{self.seconds:.0f}"
        return "| " + " | ".join((self.name, *(f"{count:,}" for count in counts), memory, seconds)) + " |"


def main() -> int:
    names = [word for word in sys.argv[1:] if "=" not in word] or list(FAMILIES)
    options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    count, seed, jobs = (int(options.get(key, default)) for key, default in (("cases", 0), ("seed", 0), ("jobs", 2)))
    plan = Plan(count, seed, float(options.get("minutes", "inf")))
    with tempfile.TemporaryDirectory(prefix="bertsmith-attacks-") as folder:
        artifacts = build_artifacts(Path(folder) / "artifacts")
        warm_up(artifacts, Path(folder) / "warm-up")
        rows = {row.name: row for row in run_families(names, artifacts, Path(folder), plan, jobs)}
    table = format_table([rows[name] for name in names])
    print(table)
    if "out" in options:
        Path(options["out"]).write_text(table + "\n", encoding="utf-8")
    return int(any(row.problems for row in rows.values()))


def warm_up(artifacts: Artifacts, work: Path) -> None:
    """Run each stage once in this process, so that forked cases need not import what it imports."""
    for number, stage in enumerate(list_stages(artifacts)):
        run_cli(*stage.args(str(work / f"{number}-{stage.out}")))
    shutil.rmtree(work)
    gc.collect()
    gc.freeze()  # so that a collection in a fork does not copy every page


def run_families(names: list[str], artifacts: Artifacts, folder: Path, plan: Plan, jobs: int) -> Iterator[Row]:
    """Rows as they end. With several jobs, each family runs in a forked process, on a copy of the artifacts."""
    if jobs == 1 or len(names) == 1:
        yield from (run_family(name, artifacts, folder / name, plan) for name in names)
        return
    with ProcessPoolExecutor(jobs, get_context("fork"), max_tasks_per_child=None) as pool:
        futures = [pool.submit(_run_on_copy, name, artifacts, folder / name, plan) for name in names]
        yield from (future.result() for future in futures)


def _run_on_copy(name: str, artifacts: Artifacts, folder: Path, plan: Plan) -> Row:
    folder.mkdir()
    return run_family(name, artifacts.copy(folder / "artifacts"), folder / "work", plan)


def run_family(name: str, artifacts: Artifacts, work: Path, plan: Plan) -> Row:
    """Run the cases of a family, and print the first problems."""
    family, row, start = importlib.import_module(f"tests.attacks.{name}"), Row(name), time.monotonic()
    work.mkdir()
    with suppress(KeyboardInterrupt):  # Ctrl-C: the table of what has run so far
        for case in family.build_cases(artifacts, work, plan.count or family.CASES, plan.seed):
            outcome, problems = run_case(case)
            row.cases += 1
            row.processes += case.as_process or case.after_process
            row.peak_memory = max(row.peak_memory, outcome.peak_memory, case.memory_before)
            for problem in problems:
                row.add_problem(problem)
                if row.problems <= SHOWN:
                    print(f"{name}: {case.name}: {problem}", flush=True)
            if time.monotonic() - start > 60 * plan.minutes:
                break
    shutil.rmtree(work, ignore_errors=True)
    row.seconds = time.monotonic() - start
    print(row, flush=True)
    return row


def format_table(rows: list[Row]) -> str:
    """In Markdown, with the sum of several rows."""
    if len(rows) > 1:
        names = ("cases", "processes", "tracebacks", "hangs", "losses", "other", "seconds")
        sums = {name: sum(getattr(row, name) for row in rows) for name in names}
        rows = [*rows, Row("all", peak_memory=max(row.peak_memory for row in rows), **sums)]
    header = "| attack | cases | as processes | tracebacks | hangs | losses | other | peak MB | seconds |"
    return "\n".join([header, "|---" * 9 + "|", *map(str, rows)])


if __name__ == "__main__":
    sys.exit(main())
