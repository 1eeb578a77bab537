"""Compressed classifiers against transformers on the original: latency of one text, throughput of 32, bytes, accuracy.

`model=` the fine-tuned checkpoint, `small=` folders that `compress`, `quantize` or `export` made of it, `data=` labelled texts
(.tsv with text, text_b, label). Every arm is a process of its own, in turns; tokenizing is included, batches come as they are.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith import api
from bertsmith.artifacts import resolve_path
from bertsmith.compression.search.measure import folder_bytes
from bertsmith.inference.predictor import load

from .inputs import BenchmarkInputs

PEER, BATCH_SIZE, SPEED_GOAL, SIZE_GOAL = "transformers SDPA fp32", 32, 8.0, 10.0
Classify = Callable[[Sequence[Any]], list[str]]


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    original, data, rounds = bench.options["model"], bench.options["data"], bench.int_option("rounds", 3)
    peer = bench.folder / "huggingface"
    api.export(model=original, out=peer, format="hf", quiet=True)
    folders = {PEER: str(peer)} | {name: name for name in bench.options["small"].split(",")}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in folders}
    for _ in range(rounds):
        for name, folder in folders.items():
            command = [sys.executable, "-m", "benchmarks.compressed", name, folder, original, data]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
            results[name].append(json.loads(output.splitlines()[-1]))
    rows = []
    peer_seconds, peer_rate = _latency(results[PEER]), _throughput(results[PEER])
    peer_bytes, peer_accuracy = folder_bytes(peer), results[PEER][0]["accuracy"]
    for name, folder in list(folders.items())[1:]:
        seconds, rate, size = _latency(results[name]), _throughput(results[name]), folder_bytes(Path(folder))
        accuracy = results[name][0]["accuracy"]
        rows += [
            (f"{name}, one text", f"{1000 * seconds:.2f} ms", f"{1000 * peer_seconds:.2f} ms", f"{peer_seconds / seconds:.1f}x",
             f"{SPEED_GOAL:g}x"),
            (f"{name}, {BATCH_SIZE} texts", f"{rate:,.0f}/s", f"{peer_rate:,.0f}/s", f"{rate / peer_rate:.1f}x",
             f"{SPEED_GOAL:g}x"),
            (f"{name}, bytes", f"{size / 1e6:.1f} MB", f"{peer_bytes / 1e6:.1f} MB", f"{peer_bytes / size:.1f}x",
             f"{SIZE_GOAL:g}x"),
            (f"{name}, accuracy", f"{accuracy:.4f}", f"{peer_accuracy:.4f}", f"{accuracy / peer_accuracy:.1%}", "95%"),
        ]  # fmt: skip
    return rows


def _latency(results: Sequence[dict[str, Any]]) -> float:
    return float(np.median(np.concatenate([result["seconds"] for result in results])))


def _throughput(results: Sequence[dict[str, Any]]) -> float:
    return statistics.median(result["throughput"] for result in results)


def _measure(name: str, folder: str, original: str, data: str) -> None:
    """In a process of its own: prints seconds of single texts, texts per second in batches, and the accuracy."""
    task = load(original, "torch", "fp32").require_task()
    examples = list(task.read(resolve_path(data, "data"), "utf-8"))
    classify = _transformers(folder) if name == PEER else _bertsmith(folder)
    labels = [
        label for start in range(0, len(examples), BATCH_SIZE) for label in classify(examples[start : start + BATCH_SIZE])
    ]
    accuracy = statistics.fmean(label == example.label for label, example in zip(labels, examples, strict=True))
    seconds = []
    for example in [*examples[:16], *examples[:200]]:
        start = time.perf_counter()
        classify([example])
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    for first in range(0, min(len(examples), 512), BATCH_SIZE):
        classify(examples[first : first + BATCH_SIZE])
    throughput = min(len(examples), 512) / (time.perf_counter() - start)
    print(json.dumps({"seconds": seconds[16:], "throughput": throughput, "accuracy": accuracy}))


def _bertsmith(folder: str) -> Classify:
    predictor = load(folder, "onnx", "fp32")
    return lambda examples: [prediction.label for prediction in predictor.predict_examples(examples)]


def _transformers(folder: str) -> Classify:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, trust_remote_code=True, attn_implementation="sdpa"
    ).eval()

    def classify(examples: Sequence[Any]) -> list[str]:
        texts, texts_b = [example.text for example in examples], [example.text_b for example in examples]
        pairs = (texts, texts_b) if texts_b[0] is not None else (texts,)
        batch = tokenizer(*pairs, padding=True, truncation=True, max_length=512, return_tensors="pt")
        with torch.inference_mode():
            best = model(**batch).logits.argmax(-1).tolist()
        return [model.config.id2label[index] for index in best]

    return classify


if __name__ == "__main__":
    _measure(*sys.argv[1:])
