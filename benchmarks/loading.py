"""A fresh process, from import to the first answer: `bertsmith.load` against transformers' pipeline, a model of 6 layers."""

import os
import subprocess
import sys

from .material import BenchmarkInputs
from .sides import median_seconds
from .weights import build_classifiers

OUR_CODE = "import bertsmith; print(bertsmith.load({folder!r})('a fine film')['label'])"
THEIR_CODE = "from transformers import pipeline; print(pipeline('text-classification', {folder!r})('a fine film')[0]['label'])"


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    weights = build_classifiers(bench, 512)
    said: set[str] = set()

    def run_process(code: str) -> None:
        surroundings = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=surroundings, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        said.add(done.stdout.strip())

    codes = OUR_CODE.format(folder=str(weights.ours)), THEIR_CODE.format(folder=str(weights.theirs))
    ours, theirs = median_seconds(
        *[lambda code=code: run_process(code) for code in codes], rounds=bench.int_option("rounds", 5)
    )
    alike = "same label" if len(said) == 1 else "ANOTHER label"
    return [(f"import, load, first answer of a new process ({alike})", f"{ours:.2f} s", f"transformers {theirs:.2f} s",
             f"{theirs / ours:.2f}x", "2x")]  # fmt: skip
