"""Labels for texts of all lengths on this CPU: our predictor against transformers' pipeline at its best batch size."""

import random
from typing import Any

from bertsmith import api

from .labelled import labelled
from .material import Material
from .sides import seconds
from .weights import classifier

LENGTH = 512
SIZES = (1, 8, 32)  # the pipeline's batches
SHARES = {"sentences": {"short": 1.0}, "sentences and documents": {"short": 0.45, "long": 0.05}}


def run(stuff: Material) -> list[tuple[str, str, str, str, str]]:
    from transformers import pipeline

    weights = classifier(stuff, LENGTH)
    ours, theirs = api.load(weights.ours), pipeline("text-classification", str(weights.theirs), device="cpu")
    asked = lambda texts, size: theirs(texts, batch_size=size, truncation=True, max_length=LENGTH)
    rows = []
    for name, shares in SHARES.items():
        counts = {kind: round(share * stuff.number("count", 400)) for kind, share in shares.items()}
        texts = [one.text for kind, count in counts.items() for one in labelled(stuff, kind)[:count]]
        random.Random(0).shuffle(texts)
        rows.append(_row(name, texts, ours, asked, stuff.number("rounds", 3)))
    return rows


def _row(name: str, texts: list[str], ours: Any, asked: Any, rounds: int) -> tuple[str, str, str, str, str]:
    some = texts[:: max(1, len(texts) // 64)]
    speeds = seconds(*[lambda size=size: asked(some, size) for size in SIZES], rounds=1)
    best = min(zip(speeds, SIZES, strict=True))[1]
    alike = sum(a["label"] == b["label"] for a, b in zip(ours(texts), asked(texts, best), strict=True))
    mine, peers = seconds(lambda: ours(texts), lambda: asked(texts, best), rounds=rounds, warm=0)
    what = f"predict {len(texts)} {name} ({alike / len(texts):.0%} of the labels alike)"
    speed = f"{len(texts) / mine:,.1f} texts/s", f"pipeline, batches of {best}: {len(texts) / peers:,.1f} texts/s"
    return what, *speed, f"{peers / mine:.2f}x", "2x"
