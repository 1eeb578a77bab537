"""Workers killed, as when memory runs out, at random moments of `prepare`, a training and a suite; then the same command again.

The command names the dead worker and continues with the same result, or ends in one line and is resumed by the second. A
suite reports the run of a dead worker, and repeats it in the second.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.attacks import disturbances
from tests.attacks.artifacts import Artifacts
from tests.attacks.disturbances import Process, Reference
from tests.attacks.harness import Case, Outcome
from tests.attacks.stages import list_stages
from tests.support.cli import SMALL
from tests.support.texts import make_english_text

CASES = 60
ORDER = (0, 0, 0, 1, 2)  # of the commands: `prepare` starts in a fraction of the time of those that import torch
WARNING, GIVEN_UP = "was killed (SIGKILL, often for lack of memory)", "workers have died at the same work"


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    text = work / "text.txt"
    text.write_text(make_english_text(5_000), encoding="utf-8")
    commands = (
        ["prepare", f"texts={text}", f"tokenizer={artifacts.tokenizer}", "workers=2", "out=o"],
        ["pretrain", f"corpus={artifacts.corpus}", *SMALL, "train.steps=16", "train.workers=2", "train.device=cpu", "out=o"],
        [*next(list(stage.words) for stage in list_stages(artifacts) if stage.name == "suite"), "seeds=0,1", "jobs=2", "out=o"],
    )
    references: dict[int, Reference] = {}
    for number in range(count):
        index = ORDER[number % len(ORDER)]
        args, folder = commands[index], work / str(number)
        if index not in references:
            references[index] = disturbances.run_reference(args, work / f"reference-{index}")
        moments = [rng.random() * references[index].seconds * 0.5 for _ in range(rng.choice((1, 1, 2, 3, 5)))]
        killed: list[int] = []

        def disturb(process: Process, moments=moments, killed=killed, rng=rng) -> None:
            while not list_workers(process.pid) and process.is_running():
                time.sleep(0.005)
            for moment in moments:
                time.sleep(moment)
                if process.is_running() and (workers := list_workers(process.pid)):
                    killed.append(rng.choice(workers))
                    with suppress(ProcessLookupError):
                        os.kill(killed[-1], signal.SIGKILL)

        outcome = disturbances.disturb(args, folder, disturb)
        name = f"{number} {args[0]}: workers killed after {', '.join(f'{moment:.2f}' for moment in moments)} s"
        problems = list(find_problems(outcome, killed))
        yield disturbances.same_command_again(name, args, folder, outcome, problems, references[index])


def list_workers(pid: int) -> list[int]:
    """Child processes that multiprocessing has spawned."""
    workers = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, IndexError):
                is_child = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid
                if is_child and b"spawn_main" in (folder / "cmdline").read_bytes():
                    workers.append(int(folder.name))
    return sorted(workers)


def find_problems(outcome: Outcome, killed: list[int]) -> Iterator[str]:
    if outcome.timed_out:
        yield f"hang: no end {disturbances.TIME_LIMIT:g} s after a worker died"
    elif "Traceback" in outcome.stderr:
        yield f"traceback: {outcome.stderr.strip().splitlines()[-1][:300]}"
    elif outcome.status == 1 and WARNING in outcome.stderr:  # a suite reports the runs that failed
        return
    elif outcome.status != 0 and not (outcome.status == 2 and GIVEN_UP in outcome.stderr and len(killed) >= 3):
        yield f"exit status {outcome.status} after a worker died: {outcome.stderr[-300:]}"
