"""Run the benchmarks one after another and print one table."""

import os
import platform
import sys
import tempfile
from importlib import import_module
from pathlib import Path

DEFAULT_BENCHMARKS = ("preparing", "batching", "train_step", "finetuning", "predicting", "loading", "generating")
OPTIONAL_BENCHMARKS = (
    "scores",
    "gpu_pretrain",
    "gpu_feeding",
    "perplexity",
    "vectors",
    "scaling",
    "reformer",
    "long_documents",
    "long_questions",
)  # only by name: they take minutes to hours, or need files or a GPU


def main() -> None:
    names = [argument for argument in sys.argv[1:] if "=" not in argument]
    options = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
    if unknown := set(names) - {*DEFAULT_BENCHMARKS, *OPTIONAL_BENCHMARKS}:
        sys.exit(f"there is no benchmark {', '.join(unknown)}; known: {', '.join([*DEFAULT_BENCHMARKS, *OPTIONAL_BENCHMARKS])}")
    rows: list[tuple[str, str, str, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="bertsmith-bench-") as folder:
        from .inputs import BenchmarkInputs

        bench = BenchmarkInputs(Path(folder), options)
        for name in names or DEFAULT_BENCHMARKS:
            rows += import_module(f"benchmarks.{name}").run(bench)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = platform.processor() or platform.machine()
    print(f"\n{machine}, {os.cpu_count()} cores, load {load} at the end, Python {platform.python_version()}")
    header = ("what", "bertsmith", "peer", "ratio", "goal")
    sizes = [max(len(row[i]) for row in [header, *rows]) for i in range(5)]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip())


if __name__ == "__main__":  # worker processes import this file too
    main()
