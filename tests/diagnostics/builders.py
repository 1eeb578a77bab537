"""A small language with an order that can be learnt in seconds, and runs on it: healthy, or broken by one setting."""

from pathlib import Path
from typing import Any

import numpy as np

import bertsmith
from tests.conftest import prepared

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [a + b for a in ("ba", "ke", "li", "mo", "nu", "po", "ri", "sa") for b in ("da", "fe", "go", "hi", "ju", "ma")]
MODEL = {"layers": 2, "width": 32, "mixer": {"kind": "dense", "heads": 2}, "feedforward": {"inner": 64}, "positions": 32,
         "dropout": 0.0, "norm": "before", "deviation": 0.08}  # fmt: skip
TRAIN = {"batch_tokens": 1024, "rate": 1e-2, "warmup": 0.1, "log_every": 5, "steps": 60}


def chained(documents: int, seed: int = 0, ordered: bool = True) -> str:
    """Each word is followed by one of two: who knows its neighbours knows it. Unordered, every word is drawn alone."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        texts.append("\n".join(_sentence(rng, ordered) for _ in range(rng.integers(3, 9))))
    return "\n\n".join(texts) + "\n"


def _sentence(rng: np.random.Generator, ordered: bool) -> str:
    word, words = int(rng.integers(len(WORDS))), []
    for _ in range(rng.integers(8, 14)):
        words.append(WORDS[word])
        word = (5 * word + int(rng.choice((7, 20)))) % len(WORDS) if ordered else int(rng.integers(len(WORDS)))
    return " ".join(words) + "."


def vocabulary(folder: Path, pieces: list[str]) -> Path:
    (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *pieces]) + "\n")
    return folder / "vocab.txt"


def corpus(folder: Path, text: str, pieces: list[str] | None = None, **settings: object) -> Path:
    """A prepared corpus of this text, under `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(text)
    words = [".", *WORDS] if pieces is None else pieces
    return prepared(folder / "text.txt", vocabulary(folder, words), folder / "corpus", **settings)


def recipe(text: Path, out: Path, model: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """The healthy recipe, but for what is said: keys of `model` and of `train`, and others as they are."""
    train = {name: settings.pop(name) for name in tuple(settings) if name not in ("objective", "length", "held_out", "valid")}
    values = {"objective": {"kind": "masked", "rate": 0.2}, "length": [32], "held_out": 0.05, "eval_tokens": 8192, **settings}
    return {"corpus": str(text), "out": str(out), "model": {**MODEL, **(model or {})}, "train": {**TRAIN, **train}, **values}


def trained(text: Path, out: Path, model: dict[str, Any] | None = None, **settings: Any) -> Path:
    bertsmith.pretrain(quiet=True, **recipe(text, out, model, **settings))
    return out


def found(folder: Path, text: Path | None = None) -> dict[str, dict[str, Any]]:
    """What the doctor finds, by name, problems before notes."""
    told = bertsmith.doctor(folder=str(folder), corpus=text and str(text), quiet=True)
    assert told["healthy"] == (not told["problems"]) and len(told["findings"]) == told["problems"] + told["notes"]
    return {one["name"]: one for one in told["findings"]}


def problems(folder: Path, text: Path | None = None) -> list[str]:
    return [name for name, one in found(folder, text).items() if one["severity"] == "problem"]
