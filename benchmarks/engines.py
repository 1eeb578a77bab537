"""Answers on a CPU by each engine: first answer of a new process, memory, idle threads, and speed with busy neighbours.

Each measurement is a new process with one engine, so that nothing of another is loaded.
"""

import json
import os
import statistics
import subprocess
import sys
from importlib.util import find_spec

from .inputs import BenchmarkInputs

PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino", "torch": "torch"}
MAX_LENGTH = 128  # words of the longest text

FIRST_ANSWER = """
import bertsmith
print(bertsmith.load({model!r}, backend={backend!r}).fill("Paris is the [MASK] of France.")[0]["token_str"])
"""
MEASUREMENTS = """
import json, os, resource, sys, time
import numpy as np
import bertsmith

def random_texts(number, seed):
    rng = np.random.default_rng(seed)
    words = [token for token in model.tokenizer.id_to_token if token.isalpha()]
    return [" ".join(rng.choice(words, rng.integers(1, {max_length}))) for _ in range(number)]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

model = bertsmith.load({model!r}, backend={backend!r}, device="cpu")
texts = random_texts(512, 0)
model.embed(texts[:64])
start, start_cpu = time.perf_counter(), time.process_time()
model.embed(texts)
seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
time.sleep(0.3)
start = time.process_time()
time.sleep(1)
idle = time.process_time() - start
memory = []
for seed in range({batches}):
    model.embed(random_texts(500, seed))
    memory.append(resident())
precision = model.engine.compute_precision
print(json.dumps({{"seconds": seconds, "cpu": cpu, "idle": idle, "memory": memory, "precision": precision}}))
"""
BUSY = "while True: pass"


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    """Rows of all engines that are installed."""
    model, rounds = bench.options.get("model", "mini-en"), bench.int_option("rounds", 5)
    chosen = bench.options.get("backends", ",".join(PACKAGES)).split(",")
    backends = [name for name, package in PACKAGES.items() if name in chosen and find_spec(package)]
    batches = max(2, bench.int_option("count", 20_000) // 500)
    rows = []
    for backend in backends:
        times = [_time(FIRST_ANSWER.format(model=model, backend=backend)) for _ in range(rounds)]
        first, first_cpu = map(statistics.median, zip(*times, strict=True))
        code = MEASUREMENTS.format(model=model, backend=backend, max_length=MAX_LENGTH, batches=batches)
        quiet = json.loads(_run(code))
        busy = _with_neighbours(bench.int_option("neighbours", 4), code.replace(f"range({batches})", "range(1)"))
        early, late = quiet["memory"][len(quiet["memory"]) // 4], quiet["memory"][-1]
        name = f"backend={backend} ({quiet['precision']})"
        rows += [
            (f"{name}: first answer of a new process", f"{first:.2f} s, {first_cpu:.2f} s of CPU", "", "", "0.5 s"),
            (f"{name}: 512 texts", f"{quiet['seconds']:.2f} s, {quiet['cpu']:.2f} s of CPU", "", "", ""),
            (f"{name}: the same beside busy processes", f"{busy['seconds']:.2f} s, {busy['cpu']:.2f} s of CPU", "",
             f"{busy['seconds'] / quiet['seconds']:.1f}x", ""),
            (f"{name}: CPU time of an idle second", f"{quiet['idle'] * 1000:.0f} ms", "", "", "0"),
            (f"{name}: memory after {batches * 125:,} / {batches * 500:,} texts of changing lengths",
             f"{early:.0f} / {late:.0f} MB", "", f"{late / early:.2f}x", "1x"),
        ]  # fmt: skip
    return rows


def _run(code: str) -> str:
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if completed.returncode:
        sys.exit(completed.stderr)
    return completed.stdout


def _time(code: str) -> tuple[float, float]:
    """Seconds, and seconds of CPU time, of a process."""
    before = os.times()
    _run(code)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return after.elapsed - before.elapsed, cpu


def _with_neighbours(number: int, code: str) -> dict[str, float]:
    """The measurements beside processes that only compute."""
    neighbours = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        return dict(json.loads(_run(code)))
    finally:
        for process in neighbours:
            process.kill()
            process.wait()
