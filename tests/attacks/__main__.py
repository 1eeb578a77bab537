"""Run families of attacks and print one table."""

import importlib
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.attacks.artifacts import build_artifacts
from tests.attacks.harness import run_case

FAMILIES = ("keys", "texts", "places", "links", "deaths", "signals", "workers", "resources", "escapes")
SHOWN = 40  # problems printed for each family


def main() -> int:
    names = [word for word in sys.argv[1:] if "=" not in word] or list(FAMILIES)
    options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    count, seed = int(options.get("cases", "0")), int(options.get("seed", "0"))
    rows, failed = [], 0
    with tempfile.TemporaryDirectory(prefix="bertsmith-attacks-") as folder:
        artifacts = build_artifacts(Path(folder) / "artifacts")
        for name in names:
            family = importlib.import_module(f"tests.attacks.{name}")
            work, start, problems = Path(folder) / name, time.monotonic(), []
            work.mkdir()
            num_cases = num_processes = peak = 0
            for case in family.build_cases(artifacts, work, count or family.CASES, seed):
                outcome, found = run_case(case)
                num_cases, num_processes = num_cases + 1, num_processes + (case.as_process or case.after_process)
                peak = max(peak, outcome.peak_memory)
                problems += [(case.name, problem) for problem in found]
                for problem in found if len(problems) <= SHOWN else ():
                    print(f"{name}: {case.name}: {problem}", flush=True)
            shutil.rmtree(work, ignore_errors=True)
            failed += len(problems)
            rows.append(_count(name, num_cases, num_processes, problems, peak, time.monotonic() - start))
            print(rows[-1], flush=True)
    header = "| attack | cases | as processes | tracebacks | hangs | losses | other | peak MB | seconds |"
    table = "\n".join([header, "|---" * 9 + "|", *rows])
    print(table)
    if "out" in options:
        Path(options["out"]).write_text(table + "\n", encoding="utf-8")
    return int(failed > 0)


def _count(name: str, cases: int, processes: int, problems: list[tuple[str, str]], peak: int, seconds: float) -> str:
    kinds = [sum(problem.startswith(kind) for _, problem in problems) for kind in ("traceback", "hang", ("changed", "lost"))]
    cells = (name, cases, processes, *kinds, len(problems) - sum(kinds), f"{peak / 2**20:.0f}", f"{seconds:.0f}")
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())
