"""Starved resources: every file operation of every stage fails once or for ever, the disk is full, files and memory run out.

Each gives one line, loses nothing, and the same command works afterwards.
"""

import contextlib
import errno
import os
import random
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.deaths import check_recovery, run_undisturbed
from tests.attacks.faults import ERRORS, break_operation, fail
from tests.attacks.harness import MEGABYTE, Case, Outcome, virtual_memory
from tests.attacks.stages import Stage, list_stages

CASES = 2500


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    yield from cases_of(list_stages(artifacts), work, count, seed)


def cases_of(stages: Sequence[Stage], work: Path, count: int, seed: int) -> Iterator[Case]:
    """`count` cases: limits of the process first, then a sample of (stage, operation, errno, once or for ever)."""
    generator, expected, faults = random.Random(seed), {}, []
    for stage in stages:
        expected[stage.name], num_operations = run_undisturbed(stage, work)
        faults += [(stage, name, limit) for name, limit in LIMITS.items()]
        faults += [
            (stage, f"{errno.errorcode[number]} at operation {index}{' and after' * for_ever}", (index, number, for_ever))
            for index in range(num_operations) for number in ERRORS for for_ever in (False, True)
        ]  # fmt: skip
    for number, (stage, name, fault) in enumerate(generator.sample(faults, min(count, len(faults)))):
        folder = work / f"fault-{number}"
        folder.mkdir()
        patch = fault if callable(fault) else break_operation(fault[0], fail(fault[1]), folder, fault[2])
        yield Case(
            f"{stage.name}: {name}",
            stage.args(),
            folder,
            patch=patch,
            statuses=frozenset({0, 1, 2}),
            check=lambda outcome, stage=stage, folder=folder: _check(stage, folder, expected[stage.name], outcome),
            timeout=120,
        )


def _check(stage: Stage, folder: Path, expected: dict[str, bytes], outcome: Outcome) -> list[str]:
    """Each error line has a way out. What a failed removal leaves behind is for the next run of the command."""
    errors = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
    problems = [f"no way out: {line}" for line in errors if "; " not in line]
    return problems + check_recovery(stage, folder, expected, outcome)


def _limit(kind: int, value: int) -> Callable[[], None]:
    def patch() -> None:
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))

    return patch


def _few_files(spare: int) -> Callable[[], None]:
    """Room for `spare` more descriptors than are open."""

    def patch() -> None:
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1 + spare, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    return patch


def _little_memory(megabytes: int) -> Callable[[], None]:
    """Room for this many megabytes of address space above what is in use."""

    def patch() -> None:
        limit = virtual_memory() + megabytes * MEGABYTE
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))

    return patch


def _no_room() -> None:
    """A limit of 16 bytes a file; Python ignores SIGXFSZ, so that writing fails."""
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


LIMITS: dict[str, Callable[[], None]] = {
    "no byte can be written": _no_room,
    **{f"files of at most {size} bytes": _limit(resource.RLIMIT_FSIZE, size) for size in (100, 1000, 4000, 16_000, 64_000)},
    **{f"{spare} descriptors": _few_files(spare) for spare in (0, 1, 2, 3, 5, 8)},
    **{f"{megabytes} MB of memory": _little_memory(megabytes) for megabytes in (1, 4, 16, 64)},
}
