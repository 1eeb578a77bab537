"""`python -m benchmarks`: run benchmarks one after another and print one table."""

import os
import platform
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from bertsmith.errors import UserError

from .options import format_help, parse_arguments


def main() -> None:
    try:
        if {"--help", "-h"} & {*sys.argv[1:]}:
            print(format_help([argument for argument in sys.argv[1:] if not argument.startswith("-") and "=" not in argument]))
            return
        names, options = parse_arguments(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
    rows: list[tuple[str, str, str, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="bertsmith-bench-") as folder:
        from .inputs import BenchmarkInputs

        bench = BenchmarkInputs(Path(folder), options)
        for name in names:
            rows += import_module(f"benchmarks.{name}").run(bench)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = platform.processor() or platform.machine()
    print(f"\n{machine}, {os.cpu_count()} cores, load {load} at the end, Python {platform.python_version()}")
    header = ("benchmark", "bertsmith", "peer", "ratio", "goal")
    sizes = [max(len(row[i]) for row in [header, *rows]) for i in range(5)]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip())


if __name__ == "__main__":  # worker processes import this file too
    main()
