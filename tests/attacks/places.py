"""`out=` at every kind of place: what is there already, inputs, sealed folders, devices, impossible names."""

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import Case
from tests.attacks.stages import Stage, list_stages

CASES = 3500
IMPOSSIBLE = (
    "", " ", "/", "//", "/..", "/.", "~nobody-here/x", "~root-not/x", "/dev/null", "/dev/full", "/dev/zero",
    "/dev/stdin", "/dev/fd/1",
    "/proc/self/x", "/proc/x", "/proc/self/mem", "/sys/x", "/proc/self/fd/1", "n" * 201, "n" * 255, "n" * 256, "n" * 5000,
    "/".join(["d"] * 3000),
    "é" * 120, "\udcff", "a\udc80b", "loop", "loop/x", "dangling/x", "file.txt/x", "file.txt/", "pipe", "pipe/x", "socket",
)  # fmt: skip
TAKEN = (".", "..", "full", "full/inner", "file.txt", "page.html", "numbers.npy", "to-file", "to-folder")
ODD = ("a b", " x", "x ", "-x", "--quiet2", "a\nb", "a\tb", "\u202ex", "猫", "é", "e\u0301", "a=b", "$HOME", "*", "?", "[a]",
       "{}", "a'b", 'a"b',
       "a\\b", "x.part", ".x", "..x", "x.", "x..", ".x.lock", "deep/er/new", "./y", "dangling", "\x1b[31m",
       "a\x07b", "%s",
       "%(x)s", "a;b", "a|b", "a&b", "con", "nul", "x" * 150, "manifest.json", "deep/../z", "state", "config.json")  # fmt: skip


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    yield from cases_of(list_stages(artifacts), artifacts, work, count, seed)


def cases_of(stages: Sequence[Stage], artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    """`count` pairs of a stage and a place; the inputs and everything that was there before are protected."""
    occupied = [path for path in sorted(artifacts.root.rglob("*")) if path.is_file() or path.is_dir()]
    places: list[str] = [
        *IMPOSSIBLE,
        *ODD,
        *TAKEN,
    ]
    places += [str(path) for path in occupied]
    unsealed = {str(path) for path in (artifacts.text, artifacts.rows, artifacts.sentences, *artifacts.unfinished.rglob("*"))}
    pairs = [(stage, place) for stage in stages for place in places]
    generator = random.Random(seed)
    generator.shuffle(pairs)
    for number, (stage, place) in enumerate(pairs[:count]):
        folder = work / f"place-{number}"
        furnish(folder)
        is_new = place in ODD
        may_mean_it = stage.is_file and not (place in unsealed and not any(place in word for word in stage.words))
        overwrite = ["overwrite=true"] if may_mean_it and generator.random() < 0.5 else []
        kept = [folder / name for name in ("full", "page.html", "numbers.npy", "target.txt", "file.txt", "pipe", "socket")]
        named = {
            "file.txt": ["file.txt"],
            "to-file": ["target.txt"],
            "page.html": ["page.html"],
            "numbers.npy": ["numbers.npy"],
        }
        if overwrite:  # the user means the file named by out, and nothing else
            kept = [path for path in kept if path.name not in named.get(place, ())]
        yield Case(
            f"{stage.name} {' '.join(overwrite)} out={place[:60]!a}",
            [*stage.words, f"out={place}", *overwrite, "--quiet"],
            folder,
            statuses=frozenset({0, 1, 2}) if is_new else frozenset({0, 2}),
            protected=(*kept, artifacts.root, Path("/dev/null")),
            timeout=60,
            check=lambda outcome, folder=folder: _clean(folder),
        )


def furnish(folder: Path) -> None:
    """A user's working folder."""
    (folder / "full" / "inner").mkdir(parents=True)
    for name in ("full/thesis.txt", "full/inner/chapter.txt", "file.txt", "page.html", "numbers.npy", "target.txt"):
        (folder / name).write_text("years of work")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("absent")
    (folder / "to-file").symlink_to("target.txt")
    (folder / "to-folder").symlink_to("full")
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "socket")


def _clean(folder: Path) -> list[str]:
    shutil.rmtree(folder, ignore_errors=True)
    return []
