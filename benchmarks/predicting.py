"""Labels for texts of all lengths on this CPU: our predictor against transformers' pipeline at its best batch size."""

import random
from typing import Any

from bertsmith import api

from .labelled import load_labelled_texts
from .material import BenchmarkInputs
from .sides import median_seconds
from .weights import build_classifiers

MAX_LENGTH = 512
BATCH_SIZES = (1, 8, 32)  # the pipeline's batches
MIXTURES = {"sentences": {"short": 1.0}, "sentences and documents": {"short": 0.45, "long": 0.05}}


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    from transformers import pipeline

    weights = build_classifiers(bench, MAX_LENGTH)
    ours, theirs = api.load(weights.ours), pipeline("text-classification", str(weights.theirs), device="cpu")
    asked = lambda texts, size: theirs(texts, batch_size=size, truncation=True, max_length=MAX_LENGTH)
    rows = []
    for name, shares in MIXTURES.items():
        counts = {kind: round(share * bench.int_option("count", 400)) for kind, share in shares.items()}
        texts = [one.text for kind, count in counts.items() for one in load_labelled_texts(bench, kind)[:count]]
        random.Random(0).shuffle(texts)
        rows.append(_compare(name, texts, ours, asked, bench.int_option("rounds", 3)))
    return rows


def _compare(name: str, texts: list[str], predictor: Any, run_pipeline: Any, rounds: int) -> tuple[str, str, str, str, str]:
    some = texts[:: max(1, len(texts) // 64)]
    speeds = median_seconds(*[lambda size=size: run_pipeline(some, size) for size in BATCH_SIZES], rounds=1)
    best = min(zip(speeds, BATCH_SIZES, strict=True))[1]
    alike = sum(a["label"] == b["label"] for a, b in zip(predictor(texts), run_pipeline(texts, best), strict=True))
    mine, peers = median_seconds(lambda: predictor(texts), lambda: run_pipeline(texts, best), rounds=rounds, warmup=0)
    what = f"predict {len(texts)} {name} ({alike / len(texts):.0%} of the labels alike)"
    speed = f"{len(texts) / mine:,.1f} texts/s", f"pipeline, batches of {best}: {len(texts) / peers:,.1f} texts/s"
    return what, *speed, f"{peers / mine:.2f}x", "2x"
