"""What `signals` and `workers` share: a command in a process of its own that is disturbed, and then the same command again."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.attacks.harness import Case, Outcome, run_command, wait_limited
from tests.support.cli import ROOT

TIME_LIMIT = 300.0
WITHOUT_TORCH = ("tokenizer", "prepare", "show")  # stages whose processes start in a fraction of a second
VOLATILE = {".json", ".html", ".md", ".toml"}  # besides tokenizer.json: they tell the time or the place


@dataclass(frozen=True)
class Reference:
    """What a command leaves behind when nothing disturbs it."""

    files: dict[str, bytes]
    seconds: float


class Process:
    """`python -m bertsmith` in a session of its own, while it is disturbed."""

    def __init__(self, args: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.start = time.monotonic()
        self.outputs = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command, (stdout, stderr) = [sys.executable, "-m", "bertsmith", *args], self.outputs
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self.pid, process.returncode = process.pid, 0  # `wait` reaps it, with its memory

    def is_running(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def send(self, number: signal.Signals, to_group: bool = False) -> None:
        with suppress(ProcessLookupError):
            (os.killpg if to_group else os.kill)(self.pid, number)

    def wait(self) -> Outcome:
        status, timed_out, peak_memory = wait_limited(self.pid, TIME_LIMIT)
        texts = []
        for file in self.outputs:
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
            file.close()
        return Outcome(status, *texts, time.monotonic() - self.start, timed_out, peak_memory)


def run_reference(args: Sequence[str], folder: Path) -> Reference:
    """What a forked process leaves, and the time that a new one would take."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome = run_command(Case("", args, folder, timeout=TIME_LIMIT))
    assert outcome.status == 0, outcome.stderr
    return Reference(read_files(folder), outcome.seconds + startup_seconds(args[0]))


def startup_seconds(stage: str) -> float:
    """The time until a new process runs a stage."""
    return _import_seconds("bertsmith.cli" if stage in WITHOUT_TORCH else "bertsmith.train.trainer")


@cache
def _import_seconds(module: str) -> float:
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.monotonic() - start


def disturb(args: Sequence[str], folder: Path, disturbance: Callable[[Process], None]) -> Outcome:
    """The outcome of a command in a process that `disturbance` is given when it handles signals, or has ended."""
    process = Process(args, folder)
    while not handles_signals(process.pid) and process.is_running():
        time.sleep(0.002)
    disturbance(process)
    return process.wait()


def handles_signals(pid: int) -> bool:
    """Whether the process handles SIGTERM: before that, Python itself is starting."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt")), 0)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def same_command_again(
    name: str, args: Sequence[str], folder: Path, first: Outcome, first_problems: Sequence[str], reference: Reference
) -> Case:
    """The second command, forked; it fails, too, for what was wrong with the first."""

    def check(outcome: Outcome) -> list[str]:
        problems = [f"{problem} (first: exit status {first.status})" for problem in first_problems]
        if outcome.status == 0:
            problems += [f"lost or changed: {name}" for name in find_differences(read_files(folder), reference.files)]
        return problems

    return Case(
        name, args, folder, frozenset({0}), check=check, timeout=TIME_LIMIT, after_process=True, memory_before=first.peak_memory
    )


def find_differences(files: dict[str, bytes], expected: dict[str, bytes]) -> Iterator[str]:
    for name in sorted(files.keys() | expected.keys()):
        if name not in files or name not in expected:
            yield f"{name} is {'missing' if name not in files else 'left over'}"
        elif files[name] != expected[name]:
            yield f"{name} differs"


def read_files(folder: Path) -> dict[str, bytes]:
    """Contents by name; of files that tell the time or the place, the names alone."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        is_volatile = path.name == "metrics.jsonl" or (path.suffix in VOLATILE and path.name != "tokenizer.json")
        files[path.relative_to(folder).as_posix()] = b"" if is_volatile else path.read_bytes()
    return files
