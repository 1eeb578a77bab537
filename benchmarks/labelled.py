"""Labelled texts: of files of your own (`short=`, `long=`), or made of this machine's words in lengths like theirs."""

import random
from pathlib import Path

from bertsmith.tasks import TextClassification
from bertsmith.tasks.classification import ClassificationExample

from .material import BenchmarkInputs

# (words in the middle, deviation of their logarithm): sentences of film reviews, and documents
LENGTH_STATISTICS = {"short": (8, 0.8), "long": (300, 0.5)}


NUM_SYNTHETIC_TEXTS = 4000


def load_labelled_texts(bench: BenchmarkInputs, kind: str) -> list[ClassificationExample]:
    """All texts of a file, in an order that says nothing."""
    path = bench.options.get(kind)
    found = _read_file(bench, kind, Path(path)) if path else _make_synthetic_texts(bench, kind)
    random.Random(0).shuffle(found)
    return found


def _read_file(bench: BenchmarkInputs, kind: str, path: Path) -> list[ClassificationExample]:
    named = {name: bench.options[f"{kind}.{name}"] for name in ("text", "label") if f"{kind}.{name}" in bench.options}
    return list(TextClassification(columns=named).read(path))


def _make_synthetic_texts(bench: BenchmarkInputs, kind: str) -> list[ClassificationExample]:
    words, dice = bench.texts[0].read_text(encoding="utf-8").split(), random.Random(1)
    middle, deviation = LENGTH_STATISTICS[kind]
    made = []
    for number in range(NUM_SYNTHETIC_TEXTS):
        size = max(1, round(middle * dice.lognormvariate(0, deviation)))
        start = dice.randrange(max(1, len(words) - size))
        made.append(ClassificationExample(" ".join(words[start : start + size]), label=str(number % 2)))
    return made
