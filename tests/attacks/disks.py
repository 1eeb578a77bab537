"""A disk that is full: each stage writes to a small tmpfs of its own, then the same command again to a larger one.

The first command ends in one line or had room enough, the second with what an undisturbed one leaves. Both are processes of
their own, in a mount namespace that needs no privileges; where the system allows none, there are no cases.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.deaths import run_undisturbed
from tests.attacks.harness import Case, Outcome, end_with_parent, find_problems, run_command
from tests.attacks.stages import Stage, check_files, list_for_processes

CASES = 125
PAGE = 4096
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    yield from cases_of(list_for_processes(artifacts), work, count, seed)


def cases_of(stages: Sequence[Stage], work: Path, count: int, seed: int) -> Iterator[Case]:
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        print("disks: this system allows no mount namespaces")
        return
    rng = random.Random(seed)
    stages = rng.sample(stages, len(stages))
    expected: dict[str, dict[str, bytes]] = {}
    for number in range(count):
        stage = stages[number % len(stages)]
        if stage.name not in expected:
            expected[stage.name] = run_undisturbed(stage, work)[0]
        pages = sum(1 + len(data) // PAGE for data in expected[stage.name].values())
        yield _fill_disk(stage, work / str(number), rng.randint(1, pages + 4), expected[stage.name])


def _fill_disk(stage: Stage, folder: Path, num_pages: int, expected: dict[str, bytes]) -> Case:
    """Runs the first command; the case is the second one."""
    folder.mkdir()
    mount = f"mount -t tmpfs -o size={num_pages * PAGE} none {folder} && echo mounted && exec sleep 600"
    holder = subprocess.Popen(
        [*NAMESPACE, "sh", "-c", mount], stdout=subprocess.PIPE, preexec_fn=partial(end_with_parent, os.getpid())
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"mounted\n"
    enter = (
        "nsenter",
        f"--target={holder.pid}",
        "--user",
        "--preserve-credentials",
        "--mount",
        "sh",
        "-c",
        'cd "$0" && exec "$@"',
        str(folder),
    )
    name = f"{stage.name} on a disk of {num_pages} pages"
    statuses = frozenset({0, 1, 2})  # 1: a suite reports the runs that failed
    first_case = Case(name, stage.args(), folder.parent, statuses, timeout=300, as_process=True, wrapper=enter)
    first = run_command(first_case)
    problems = [f"{problem} (on the full disk)" for problem in find_problems(first_case, first)]
    subprocess.run([*enter, "mount", "-o", f"remount,size={1 << 26}", str(folder)], check=True)

    def check(outcome: Outcome) -> list[str]:
        found = problems + check_files(expected, Path(f"/proc/{holder.pid}/root{folder}"), outcome, remove=False)
        holder.kill()
        holder.wait()
        return found

    return Case(name, stage.args(), folder.parent, frozenset({0}), timeout=300, as_process=True, wrapper=enter, check=check)
