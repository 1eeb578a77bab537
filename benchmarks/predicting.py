"""Text classification of mixed lengths on a CPU: our predictor against transformers' pipeline at its best batch size."""

import random
from typing import Any

from bertsmith import api

from .inputs import BenchmarkInputs
from .labelled import load_labelled_texts
from .timing import median_seconds
from .weights import build_classifiers

MAX_LENGTH = 512
BATCH_SIZES = (1, 8, 32)  # tried for the pipeline
MIXTURES = {"sentences": {"short": 1.0}, "sentences and documents": {"short": 0.45, "long": 0.05}}


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    from transformers import pipeline

    weights = build_classifiers(bench, MAX_LENGTH)
    ours, theirs = api.load(weights.ours), pipeline("text-classification", str(weights.theirs), device="cpu")
    run_pipeline = lambda texts, size: theirs(texts, batch_size=size, truncation=True, max_length=MAX_LENGTH)
    rows = []
    for name, fractions in MIXTURES.items():
        counts = {kind: round(fraction * bench.int_option("count", 400)) for kind, fraction in fractions.items()}
        texts = [example.text for kind, count in counts.items() for example in load_labelled_texts(bench, kind)[:count]]
        random.Random(0).shuffle(texts)
        rows.append(_compare(name, texts, ours, run_pipeline, bench.int_option("rounds", 3)))
    return rows


def _compare(name: str, texts: list[str], predictor: Any, run_pipeline: Any, rounds: int) -> tuple[str, str, str, str, str]:
    sample = texts[:: max(1, len(texts) // 64)]
    seconds = median_seconds(*[lambda size=size: run_pipeline(sample, size) for size in BATCH_SIZES], rounds=1)
    best_size = min(zip(seconds, BATCH_SIZES, strict=True))[1]
    num_equal = sum(a["label"] == b["label"] for a, b in zip(predictor(texts), run_pipeline(texts, best_size), strict=True))
    our_seconds, their_seconds = median_seconds(
        lambda: predictor(texts), lambda: run_pipeline(texts, best_size), rounds=rounds, warmup=0
    )
    label = f"predict {len(texts)} {name} ({num_equal / len(texts):.0%} identical labels)"
    speed = (
        f"{len(texts) / our_seconds:,.1f} texts/s",
        f"pipeline, batches of {best_size}: {len(texts) / their_seconds:,.1f} texts/s",
    )
    return label, *speed, f"{their_seconds / our_seconds:.2f}x", "2x"
