"""A race small enough for a test: synthetic text, a classification task decided by single words, small models."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.texts import WORDS, make_english_text

SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "mixer": {"kind": "attention", "num_attention_heads": 2},
    "feedforward": {"intermediate_size": 32},
    "max_position_embeddings": 32,
}
CAUSAL = SMALL | {"mixer": {"kind": "attention", "num_attention_heads": 2, "causal": True}}


def labelled_rows(count: int, seed: int) -> str:
    """A TSV of texts whose label, `people` or `time`, is their last word."""
    rng = np.random.default_rng(seed)
    lines = ["text\tlabel"]
    for _ in range(count):
        label = ("people", "time", "time")[rng.integers(3)]
        lines.append(" ".join([*rng.choice(WORDS[:20], 4), label]) + f"\t{label}")
    return "\n".join(lines) + "\n"


def write_files(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(make_english_text(40))
    (folder / "valid.txt").write_text(make_english_text(6, seed=1))
    (folder / "train.tsv").write_text(labelled_rows(24, 0))
    (folder / "dev.tsv").write_text(labelled_rows(12, 2))
    return folder


def race_settings(folder: Path, out: Path, **changes: Any) -> dict[str, Any]:
    data = {"train": str(folder / "train.tsv"), "dev": str(folder / "dev.tsv")}
    return {
        "out": str(out),
        "texts": [str(folder / "text.txt")],
        "valid": [str(folder / "valid.txt")],
        "tokenizer": {"kind": "wordpiece", "vocab_size": 200},
        "prepare": {"workers": 1},
        "budget": {"flops": 3e8},
        "every": {"max_length": 32, "eval_tokens": 512, "train": {"batch_tokens": 256, "learning_rate": 1e-3, "device": "cpu"}},
        "frozen": {"max_length": 32, "freeze": "all", "features": {"layers": "mix"}, "train": {"steps": 2, "device": "cpu"}},
        "tuned": {"max_length": 32, "train": {"steps": 2, "device": "cpu"}},
        "tasks": {"about": {"task": "classify", "data": data}},
        "seeds": [0],
        "members": {
            "bert": {"model": SMALL},
            "left": {"model": CAUSAL, "objective": "clm"},
            "left-lstm": {"of": "left", "tuned": {"features": {"layers": "last", "lstm": 1}}, "frozen": False},
        },
        **changes,
    }
