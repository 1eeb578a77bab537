"""What two versions of the package take for the same work, in turns.

`prepare`, saving a checkpoint, the first answer of a new process, and many answers while other processes have the cores.
The earlier version is a folder of sources, such as `src` of a `git worktree`.
"""

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bertsmith

from .inputs import BenchmarkInputs
from .timing import median_seconds

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
    outs = [bench.folder / f"corpus-{index}" for index in range(2)]

    def prepare(index: int) -> None:
        _run_python(versions[index], *arguments, f"out={outs[index]}")
        shutil.rmtree(outs[index])

    def answer(index: int) -> None:
        _run_python(versions[index], "-c", ANSWER_CODE)

    save_code = SAVE_CODE.format(size=TENSOR_SIZE, folder=str(bench.folder / "run"))
    saves, texts = list[list[float]](), list[list[float]]()
    for _ in range(rounds):
        saves.append([])
        for source in versions:
            saves[-1].append(float(_run_python(source, "-c", save_code)))
            shutil.rmtree(bench.folder / "run")
    for _ in range(rounds):
        with _busy_cores():
            texts.append([float(_run_python(source, "-c", TEXTS_CODE.format(count=NUM_TEXTS))) for source in versions])
    return [
        _compare(f"prepare {text.stat().st_size / 1e6:.1f} MB, one worker", _time(prepare, rounds)),
        _compare(f"save a checkpoint of {TENSOR_SIZE * 12 / 1e6:.0f} MB", _medians(saves)),
        _compare("new process to its first answer (mini-en)", _time(answer, rounds)),
        _compare(f"embed {NUM_TEXTS} texts beside {NUM_BUSY} busy processes", _medians(texts)),
    ]


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


def _medians(rounds: list[list[float]]) -> list[float]:
    """Of each version."""
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def _time(function: Callable[[int], None], rounds: int) -> list[float]:
    return median_seconds(lambda: function(0), lambda: function(1), rounds=rounds)


def _run_python(source: Path, *args: str) -> str:
    """stdout of Python with this version of the package."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    process = subprocess.run([sys.executable, *args], env=environment, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{source}: {process.stderr}")
    return process.stdout


def _compare(label: str, seconds: list[float]) -> tuple[str, str, str, str, str]:
    now, before = seconds
    return label, f"{now:.3f} s", f"before {before:.3f} s", f"{before / now:.2f}x", "1x"
