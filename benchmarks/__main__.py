"""Runs the benchmarks one after another and prints one table."""

import os
import platform
import sys
import tempfile
from importlib import import_module
from pathlib import Path

DEFAULT_BENCHMARKS = ("preparing", "batching", "stepping", "finetuning", "predicting", "loading", "generating")
OPTIONAL_BENCHMARKS = (
    "scores",
    "gpu_pretrain",
    "gpu_feeding",
    "foretelling",
    "vectors",
    "scaling",
    "reformer",
    "long_documents",
    "long_questions",
)  # minutes to hours, or in need of files or a GPU: only by name


def main() -> None:
    words = [word for word in sys.argv[1:] if "=" not in word]
    given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    if unknown := set(words) - {*DEFAULT_BENCHMARKS, *OPTIONAL_BENCHMARKS}:
        sys.exit(f"there is no benchmark {', '.join(unknown)}; known: {', '.join([*DEFAULT_BENCHMARKS, *OPTIONAL_BENCHMARKS])}")
    rows: list[tuple[str, str, str, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="bertsmith-bench-") as folder:
        from .material import BenchmarkInputs

        stuff = BenchmarkInputs(Path(folder), given)
        for name in words or DEFAULT_BENCHMARKS:
            rows += import_module(f"benchmarks.{name}").run(stuff)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = platform.processor() or platform.machine()
    print(f"\n{machine}, {os.cpu_count()} cores, load {load} at the end, Python {platform.python_version()}")
    head = ("what", "bertsmith", "peer", "ratio", "goal")
    sizes = [max(len(row[i]) for row in [head, *rows]) for i in range(5)]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip())


if __name__ == "__main__":  # worker processes import this file too
    main()
