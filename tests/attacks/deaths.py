"""A process dies at each file operation of each stage; the same command again must end as if nothing had happened.

Checked: every file has the bytes of an undisturbed run (times aside), and nothing else is left.
"""

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.faults import DIED, break_operation, count_operations, die
from tests.attacks.harness import Case, Outcome, run_command
from tests.attacks.stages import Stage, compare, list_slow_stages, list_stages, snapshot

CASES = 2000


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    """One case for each operation of each stage, a tenth of them for slow stages; a sample of `count` if there are more."""
    yield from cases_of(list_stages(artifacts), work, count, seed, list_slow_stages(artifacts))


def cases_of(stages: Sequence[Stage], work: Path, count: int, seed: int, slow_stages: Sequence[Stage] = ()) -> Iterator[Case]:
    positions, expected = [], {}
    for stage in (*stages, *slow_stages):
        expected[stage.name], num_operations = run_undisturbed(stage, work)
        positions += [
            (stage, index)
            for index in range(seed % 10 if stage in slow_stages else 0, num_operations, 10 if stage in slow_stages else 1)
        ]
    positions = random.Random(seed).sample(positions, min(count, len(positions)))
    for number, (stage, index) in enumerate(positions):
        folder = work / f"death-{number}"
        folder.mkdir()
        yield Case(
            f"{stage.name} dies at operation {index}",
            stage.args(),
            folder,
            statuses=frozenset({0, DIED}),
            patch=break_operation(index, die, folder),
            check=lambda outcome, stage=stage, folder=folder: check_recovery(stage, folder, expected[stage.name], outcome),
            timeout=120,
        )


def run_undisturbed(stage: Stage, work: Path) -> tuple[dict[str, bytes], int]:
    """What a stage leaves, and the number of its file operations."""
    folder, log = work / "undisturbed", work / "operations"
    folder.mkdir()
    outcome = run_command(Case(stage.name, stage.args(), folder, patch=count_operations(folder, log), timeout=120))
    assert outcome.status == 0, f"{stage.name}: {outcome.stderr}"
    files, num_operations = snapshot(folder), log.stat().st_size
    shutil.rmtree(folder)
    log.unlink()
    return files, num_operations


def check_recovery(stage: Stage, folder: Path, expected: dict[str, bytes], outcome: Outcome) -> list[str]:
    """Problems of the same command again, and of what it leaves."""
    again = run_command(Case(stage.name, stage.args(), folder, timeout=120))
    if again.status:
        problems = [f"lost: the same command again ends with {again.status}: {again.stderr.strip()[-300:]}"]
    else:
        problems = compare(expected, snapshot(folder))
    shutil.rmtree(folder, ignore_errors=True)
    return problems
