"""Damage to every file of every folder: flipped, zeroed, cut, appended, swapped, emptied, removed.

Where a manifest lists the file, the command must refuse it, or say exactly what it says without the damage, because it does not
read the file. Where none does, it must end in a result or one line of error.
"""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import MEGABYTE, Case, Outcome, run_command
from tests.attacks.readers import build_sources, commands_for

CASES = 3000
MAX_MEMORY = 1200 * MEGABYTE  # torch included; the folders have less than a megabyte
DAMAGES = ("flip", "flip", "flip", "zero", "cut", "append", "swap", "empty", "remove")


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int, kinds: tuple[str, ...] = ()) -> Iterator[Case]:
    rng, sources = random.Random(seed), build_sources(artifacts, work / "sources")
    names = list(kinds or sources)
    expected: dict[tuple[str, int], tuple[int, str]] = {}
    for number in range(count):
        kind = names[number % len(names)]
        source, out = sources[kind], work / f"out-{number}"
        is_sealed = kind in artifacts.folders and kind != "unfinished" and rng.random() < 0.6
        index = rng.randrange(len(commands_for(kind, source, artifacts, out)))
        if is_sealed and (kind, index) not in expected:
            clean = work / f"clean-{kind}-{index}"
            outcome = run_command(Case("", commands_for(kind, source, artifacts, clean)[index], work, timeout=60))
            expected[kind, index] = outcome.status, _without_paths(outcome.stdout, source, clean)
        copy = work / f"case-{number}"
        shutil.copytree(source if source.is_dir() else source.parent, copy)
        path = copy if source.is_dir() else copy / source.name
        name, damage = damage_file(rng, copy, is_sealed)
        if not is_sealed:
            for manifest in copy.rglob("manifest.json"):
                if kind != "unfinished" or rng.random() < 0.5:
                    manifest.unlink()
        args = commands_for(kind, path, artifacts, out)[index]
        found = expected.get((kind, index)) if is_sealed else None
        yield Case(
            f"{number} {kind} {'sealed' if is_sealed else 'unsealed'} {name}: {damage}: {' '.join(args)[:200]}",
            args,
            work,
            statuses=frozenset({0, 1, 2} if args[0] == "doctor" else {0, 2}),
            protected=(copy,),
            timeout=60,
            max_memory=MAX_MEMORY,
            check=lambda outcome, found=found, path=path, out=out, copy=copy: _check(outcome, found, path, out, copy),
        )


def damage_file(rng: random.Random, folder: Path, is_sealed: bool) -> tuple[str, str]:
    """Change one file; the name and what was done to it."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and (not is_sealed or path.name != "manifest.json"))
    path, damage = rng.choice(paths), rng.choice(DAMAGES)
    data = bytearray(path.read_bytes())
    if not data and damage not in ("append", "remove", "swap"):
        damage = "append"
    position = rng.randrange(len(data)) if data else 0
    if damage == "flip":
        data[position] ^= 1 << rng.randrange(8)
    elif damage == "zero":
        data[position : position + 64] = bytes(len(data[position : position + 64]))
    elif damage == "cut":
        del data[position:]
    elif damage == "append":
        data += rng.randbytes(rng.choice((1, 8, 1000)))
    elif damage == "swap":
        data = bytearray(rng.choice(paths).read_bytes())
    elif damage == "empty":
        data.clear()
    path.unlink()
    if damage != "remove":
        path.write_bytes(data)
    return path.relative_to(folder).as_posix(), f"{damage} at {position}"


def _check(outcome: Outcome, expected: tuple[int, str] | None, path: Path, out: Path, copy: Path) -> list[str]:
    problems = []
    if expected and outcome.status == 0 and (0, _without_paths(outcome.stdout, path, out)) != expected:
        problems.append(f"changed: another result without a word: {outcome.stdout[:200]!r}")
    if outcome.status == 2 and out.exists():
        problems.append("lost: an output remains after an error")
    for item in (copy, out, out.with_name(out.name + ".html"), out.with_name(out.name + ".txt")):
        if item.is_dir():
            shutil.rmtree(item)
        elif os.path.lexists(item):
            item.unlink()
    return problems


def _without_paths(text: str, *paths: Path) -> str:
    for path in paths:
        text = text.replace(str(path), "PATH")
    return text
