"""Links and users' files where a stage keeps its lock, its partial files and its output: nothing of the user's may change."""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.attacks.artifacts import Artifacts
from tests.attacks.harness import Case
from tests.attacks.stages import Stage, list_stages

CASES = 2400
BESIDE = (
    ".{}.lock",
    "{}.part",
    "{}.old.part",
    "{}.part.json",
    ".{}.run.json",
    ".{}.part",
    "{}.tmp",
    "{}.lock",
    ".{}.bertsmith-x.part",
)
INSIDE = ("config.json", "card.json", "manifest.json", "metrics.jsonl", "model.safetensors", "tokenizer.json", "scores.json",
          "report.html", "journal.json", "tokens.bin", "state", "state/step-2", "state/split.json", "seeds",
          "seeds/seed-0", "runs", "runs/m", "counts")  # fmt: skip

Plant = Callable[[Path, Path, Path], None]  # place, victim file, victim folder


def link_to_file(place: Path, file: Path, folder: Path) -> None:
    place.symlink_to(file)


def link_to_folder(place: Path, file: Path, folder: Path) -> None:
    place.symlink_to(folder)


def link_to_nothing(place: Path, file: Path, folder: Path) -> None:
    place.symlink_to(folder / "absent")


def own_file(place: Path, file: Path, folder: Path) -> None:
    place.write_bytes(file.read_bytes())


def own_folder(place: Path, file: Path, folder: Path) -> None:
    shutil.copytree(folder, place)


def own_pipe(place: Path, file: Path, folder: Path) -> None:
    os.mkfifo(place)


PLANTS = (link_to_file, link_to_folder, link_to_nothing, own_file, own_folder, own_pipe)


def build_cases(artifacts: Artifacts, work: Path, count: int, seed: int) -> Iterator[Case]:
    yield from cases_of(list_stages(artifacts), work, count, seed)


def cases_of(stages: Sequence[Stage], work: Path, count: int, seed: int) -> Iterator[Case]:
    attacks = [
        (stage, name, plant) for stage in stages for plant in PLANTS
        for name in (*BESIDE, *(f"{{}}/{name}" for name in INSIDE if not stage.is_file))
    ]  # fmt: skip
    random.Random(seed).shuffle(attacks)
    for number, (stage, name, plant) in enumerate(attacks[:count]):
        folder, victims = work / f"link-{number}", work / f"victims-{number}"
        folder.mkdir()
        file, tree = victims / "thesis.txt", victims / "thesis"
        tree.mkdir(parents=True)
        file.write_text("years of work")
        (tree / "chapter.txt").write_text("one of them")
        place = folder / name.format(stage.out)
        place.parent.mkdir(parents=True, exist_ok=True)
        plant(place, file, tree)
        kept = (victims, place)
        yield Case(
            f"{stage.name}: {plant.__name__} at {name.format('OUT')}",
            stage.args(),
            folder,
            protected=kept,
            timeout=60,
            check=lambda outcome, folder=folder, victims=victims: _clean(folder, victims),
        )


def _clean(*folders: Path) -> list[str]:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return []
