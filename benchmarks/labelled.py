"""Labelled texts: from files (`short=`, `long=`), or synthetic ones with similar lengths."""

import random
from pathlib import Path

from bertsmith.tasks import TextClassification
from bertsmith.tasks.classification import ClassificationExample

from .inputs import BenchmarkInputs

# log-normal (median words, sigma): sentences of film reviews, and documents
LENGTH_STATISTICS = {"short": (8, 0.8), "long": (300, 0.5)}
NUM_SYNTHETIC_TEXTS = 4000


def load_labelled_texts(bench: BenchmarkInputs, kind: str) -> list[ClassificationExample]:
    """All texts of a file, shuffled."""
    path = bench.options.get(kind)
    examples = _read_file(bench, kind, Path(path)) if path else _make_synthetic_texts(bench, kind)
    random.Random(0).shuffle(examples)
    return examples


def _read_file(bench: BenchmarkInputs, kind: str, path: Path) -> list[ClassificationExample]:
    columns = {name: bench.options[f"{kind}.{name}"] for name in ("text", "label") if f"{kind}.{name}" in bench.options}
    return list(TextClassification(columns=columns).read(path))


def _make_synthetic_texts(bench: BenchmarkInputs, kind: str) -> list[ClassificationExample]:
    words, rng = bench.texts[0].read_text(encoding="utf-8").split(), random.Random(1)
    median, sigma = LENGTH_STATISTICS[kind]
    examples = []
    for index in range(NUM_SYNTHETIC_TEXTS):
        size = max(1, round(median * rng.lognormvariate(0, sigma)))
        start = rng.randrange(max(1, len(words) - size))
        examples.append(ClassificationExample(" ".join(words[start : start + size]), label=str(index % 2)))
    return examples
