"""SIGKILL at random moments of every stage that writes, in a process of its own; then the same command again.

The second command ends with what an undisturbed one leaves: every byte (times aside), and nothing else.
"""

import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.attacks import disturbances
from tests.attacks.artifacts import Artifacts
from tests.attacks.deaths import run_undisturbed
from tests.attacks.disturbances import Process
from tests.attacks.harness import Case
from tests.attacks.stages import Stage, check_files, list_for_processes

CASES = 140


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    yield from cases_of(list_for_processes(artifacts), work, count, seed)


def cases_of(stages: Sequence[Stage], work: Path, count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    stages = rng.sample(stages, len(stages))
    expected: dict[str, dict[str, bytes]] = {}
    seconds: dict[str, float] = {}
    for number in range(count):
        stage, folder = stages[number % len(stages)], work / str(number)
        if stage.name not in expected:
            start = time.monotonic()
            expected[stage.name] = run_undisturbed(stage, work)[0]
            seconds[stage.name] = time.monotonic() - start + disturbances.startup_seconds(stage.words[0])
        moment = rng.random() * seconds[stage.name]

        def kill(process: Process, moment=moment) -> None:
            time.sleep(moment)
            process.send(signal.SIGKILL, to_group=True)

        first = disturbances.disturb(stage.args(), folder, kill)
        yield Case(
            f"{stage.name}: SIGKILL after {moment:.2f} s (status {first.status})",
            stage.args(),
            folder,
            statuses=frozenset({0}),
            timeout=disturbances.TIME_LIMIT,
            check=lambda outcome, stage=stage, folder=folder: check_files(expected[stage.name], folder, outcome),
            after_process=True,
            memory_before=first.peak_memory,
        )
