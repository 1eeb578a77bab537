"""Startup: import, load and first prediction in a new process, `bertsmith.load` against transformers' pipeline, 6 layers."""

import os
import subprocess
import sys

from .inputs import BenchmarkInputs
from .timing import median_seconds
from .weights import build_classifiers

OUR_CODE = "import bertsmith; print(bertsmith.load({folder!r})('a fine film')['label'])"
THEIR_CODE = "from transformers import pipeline; print(pipeline('text-classification', {folder!r})('a fine film')[0]['label'])"


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    weights = build_classifiers(bench, 512)
    labels: set[str] = set()

    def run_process(code: str) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        if process.returncode:
            sys.exit(process.stderr)
        labels.add(process.stdout.strip())

    codes = OUR_CODE.format(folder=str(weights.ours)), THEIR_CODE.format(folder=str(weights.theirs))
    ours, theirs = median_seconds(
        *[lambda code=code: run_process(code) for code in codes], rounds=bench.int_option("rounds", 5)
    )
    agreement = "same label" if len(labels) == 1 else "DIFFERENT labels"
    label = f"import, load and first prediction in a new process ({agreement})"
    return [(label, f"{ours:.2f} s", f"transformers {theirs:.2f} s", f"{theirs / ours:.2f}x", "2x")]
