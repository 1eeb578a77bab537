"""SIGTERM, SIGINT and SIGHUP, alone and twice at once, at random moments of every stage; then the same command again.

A process ends with one line and exit status 130 (or had finished), and the second command with what an undisturbed one leaves.
"""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.attacks import disturbances
from tests.attacks.artifacts import Artifacts
from tests.attacks.disturbances import Process, Reference
from tests.attacks.harness import Case, Outcome
from tests.attacks.keys import build_commands

CASES = 280
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    commands = [args for args in list_commands(artifacts) for _ in range(8 if args[0] in disturbances.WITHOUT_TORCH else 1)]
    rng.shuffle(commands)
    references: dict[tuple[str, ...], Reference] = {}
    for number in range(count):
        args = commands[number % len(commands)]
        if tuple(args) not in references:
            references[tuple(args)] = disturbances.run_reference(args, work / f"reference-{number}")
        reference, folder = references[tuple(args)], work / str(number)
        moment, signals = rng.random() * 1.1 * reference.seconds, rng.choice(SIGNALS)
        times = rng.choice((1, 1, 2, 2, 3))

        def disturb(process: Process, moment=moment, number=signals, times=times) -> None:
            time.sleep(moment)
            for repeat in range(times):
                process.send(number if repeat < 2 else signal.SIGINT)
                time.sleep(0.01 * repeat)

        outcome = disturbances.disturb(args, folder, disturb)
        name = f"{number} {signals.name} x{times} after {moment:.2f} s of {args[0]} {args[1]}"
        yield disturbances.same_command_again(name, args, folder, outcome, list(find_problems(outcome)), reference)


def list_commands(artifacts: Artifacts) -> list[list[str]]:
    """A command of each stage that writes something, in its working folder."""
    steps = {"train.steps=1": "train.steps=8"}
    commands = [[stage, *words] for stage, options in build_commands(artifacts).items() for words in options]
    commands = [
        command for command in commands if any("OUT" in word for word in command) and command[0] not in ("suite", "race")
    ]
    commands = [[steps.get(word, word.replace("OUT", "o")) for word in command] for command in commands]
    train = next(command for command in commands if command[0] == "finetune")
    return [*commands, [*train, "seeds=0,1"]]


def find_problems(outcome: Outcome) -> Iterator[str]:
    lines = outcome.stderr.splitlines()
    if outcome.timed_out:
        yield f"hang: no end {disturbances.TIME_LIMIT:g} s after a signal"
    elif "Traceback" in outcome.stderr:
        yield f"traceback: {lines[-1][:300]}"
    elif outcome.status not in (0, 130):
        yield f"exit status {outcome.status} after a signal: {outcome.stderr[-300:]}"
    elif outcome.status == 130 and sum(line.startswith("interrupted: ") for line in lines) != 1:
        yield f"not one line that says it was interrupted: {outcome.stderr[-300:]!r}"
