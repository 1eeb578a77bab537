"""What `signals` and `workers` share: a command in a process of its own that is disturbed, and then the same command again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.attacks.harness import Case, Outcome
from tests.support.cli import ROOT

TIME_LIMIT = 300.0
VOLATILE = {".json", ".html", ".md", ".toml"}  # besides tokenizer.json: they tell the time or the place


@dataclass(frozen=True)
class Reference:
    """What a command leaves behind when nothing disturbs it."""

    files: dict[str, bytes]
    seconds: float


def run_reference(args: Sequence[str], folder: Path) -> Reference:
    start = time.monotonic()
    process = start_process(args, folder)
    _, stderr = process.communicate(timeout=TIME_LIMIT)
    assert process.returncode == 0, stderr.decode()
    return Reference(read_files(folder), time.monotonic() - start)


def start_process(args: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "bertsmith", *args]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def disturb(args: Sequence[str], folder: Path, disturbance: Callable[[subprocess.Popen[bytes]], None]) -> Outcome:
    """The outcome of a command in a process that `disturbance` is given when it handles signals, or has ended."""
    start, process, timed_out = time.monotonic(), start_process(args, folder), False
    while not handles_signals(process.pid) and process.poll() is None:
        time.sleep(0.002)
    disturbance(process)
    try:
        stdout, stderr = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        timed_out = True
    texts = (stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))
    return Outcome(process.returncode, *texts, time.monotonic() - start, timed_out, 0)


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

    return Case(name, args, folder, frozenset({0}), check=check, timeout=TIME_LIMIT, after_process=True)


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
