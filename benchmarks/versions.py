"""What two versions of the package take for the same work, in turns.

`prepare`, saving a checkpoint, the first answer of a new process, and many answers while other processes have the cores.
The earlier version is a folder of sources, such as `src` of a `git worktree`.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bertsmith

from .inputs import BenchmarkInputs

TEXT_BYTES = 8 << 20
TENSOR_SIZE = 4_000_000  # parameters of the model whose checkpoints are saved; AdamW has twice as many numbers
SAVE_CODE = """
import statistics, sys, time, torch
from pathlib import Path
from bertsmith.runs import Run
weights = {{f"layer{{i}}": torch.full(({size} // 8,), float(i)) for i in range(8)}}
moments = {{f"{{name}}.{{i}}": value + i for name, value in weights.items() for i in range(2)}}
run, seconds = Run(Path({folder!r})), []
for step in range(6):
    start = time.perf_counter()
    run.save_checkpoint(step, {{"model": weights, "optimizer": moments}}, {{"step": step}}, 2)
    seconds.append(time.perf_counter() - start)
print(statistics.median(seconds[1:]))
"""
ANSWER_CODE = "import bertsmith; print(bertsmith.load('mini-en').fill('Paris is the [MASK] of France.')[0]['token_str'])"

TEXTS_CODE = """
import time, bertsmith
model = bertsmith.load("mini-en")
texts = ["the film was good and the actors were better " * (1 + i % 3) for i in range({count})]
model.embed(texts[:16])
start = time.perf_counter()
model.embed(texts)
print(time.perf_counter() - start)
"""
NUM_TEXTS, NUM_BUSY = 128, 4


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    before = Path(bench.options["before"]).resolve()
    versions = [Path(bertsmith.__file__).parents[1], before]
    text, rounds = bench.folder / "part.txt", bench.int_option("rounds", 5)
    text.write_bytes(bench.texts[0].read_bytes()[:TEXT_BYTES].rpartition(b"\n")[0])
    arguments = ["-m", "bertsmith", "prepare", f"texts={text}", f"tokenizer={bench.tokenizer}", "workers=1", "--quiet"]
    out = bench.folder / "out"

    def prepare(source: Path) -> float:
        return _cpu_seconds(source, *arguments, f"out={out}")

    def save(source: Path) -> float:
        return float(_run_python(source, "-c", SAVE_CODE.format(size=TENSOR_SIZE, folder=str(out))))

    def answer(source: Path) -> float:
        return _cpu_seconds(source, "-c", ANSWER_CODE)

    def embed(source: Path) -> float:
        return float(_run_python(source, "-c", TEXTS_CODE.format(count=NUM_TEXTS)))

    def compare(label: str, measure: Callable[[Path], float]) -> tuple[str, str, str, str, str]:
        """Medians of the rounds, both versions in turns."""
        seconds: list[list[float]] = [[], []]
        for _ in range(rounds):
            for source, values in zip(versions, seconds, strict=True):
                values.append(measure(source))
                shutil.rmtree(out, ignore_errors=True)
        now, earlier = map(statistics.median, seconds)
        return label, f"{now:.3f} s", f"before {earlier:.3f} s", f"{earlier / now:.2f}x", "1x"

    rows = [
        compare(f"prepare {text.stat().st_size / 1e6:.1f} MB, one worker, CPU time", prepare),
        compare(f"save a checkpoint of {TENSOR_SIZE * 12 / 1e6:.0f} MB", save),
        compare("new process to its first answer (mini-en), CPU time", answer),
    ]
    with _busy_cores():
        rows.append(compare(f"embed {NUM_TEXTS} texts beside {NUM_BUSY} busy processes", embed))
    return rows


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Processes that compute without end, as many as NUM_BUSY."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(NUM_BUSY)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _cpu_seconds(source: Path, *args: str) -> float:
    """User and system time of Python with this version of the package: what other processes do changes it little."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run_python(source, *args)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def _run_python(source: Path, *args: str) -> str:
    """stdout of Python with this version of the package."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    process = subprocess.run([sys.executable, *args], env=environment, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{source}: {process.stderr}")
    return process.stdout
