"""Plans against what then happens, five of them: `python -m benchmarks.planning [texts=FILES] [vocabulary=FILE] [steps=N]`.

On a GPU each is planned twice: by the table of machines, and by measuring. The last column tells which of the table's numbers
would have been right.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bertsmith import api
from bertsmith.planning.machines import MACHINES, Machine

from .material import BenchmarkInputs

GPU_RUNS = [
    "model=bert-base train.batch_tokens=65536",
    "model=bert-base train.batch_tokens=32768 train.accumulate=2 length=512",
    "model=bert-base train.batch_tokens=65536 train.compile=true",
    "model=bert-large train.batch_tokens=32768 train.recompute=true",
    "model=bert-medium train.batch_tokens=131072 train.optimizer=lamb objective=masked",
]
CPU_RUNS = [
    "model=bert-mini train.batch_tokens=2048",
    "model=bert-mini train.batch_tokens=1024 train.accumulate=3 train.optimizer=lamb",
    "model=bert-mini train.batch_tokens=2048 train.recompute=true",
    "model=bert-tiny train.batch_tokens=4096 length=64 objective=masked",
    "model=bert-small train.batch_tokens=512",
]
Result = dict[str, Any]


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="bertsmith-bench-") as folder:
        stuff = BenchmarkInputs(Path(folder), given)
        corpus = str(stuff.folder / "corpus")
        texts = [str(path) for path in stuff.texts]
        api.prepare(texts=texts, tokenizer=str(stuff.tokenizer), out=corpus, quiet=True)
        for number, words in enumerate(GPU_RUNS if gpu else CPU_RUNS):
            settings = _parse_settings(
                words, corpus, str(stuff.folder / f"run{number}"), stuff.int_option("steps", 200 if gpu else 40), gpu
            )
            plans = [("measured", api.plan(**settings, quiet=True))]
            plans += [("by table", api.plan(**settings, machine="h200", quiet=True))] if gpu else []
            real, peak = _run_pretrain(settings, gpu)
            for how, planned in plans:
                print(f"{words:74} {how:9} {_format_comparison(planned, real, peak)}", flush=True)
            if gpu:
                print(f"{'':74} {_format_calibration(plans[1][1], real, peak, settings, MACHINES['h200'])}", flush=True)


def _parse_settings(overrides: str, corpus: str, out: str, steps: int, gpu: bool) -> dict[str, Any]:
    train: dict[str, Any] = {"steps": steps, "precision": "bf16", "workers": 8} if gpu else {"steps": steps}
    settings: dict[str, Any] = {"corpus": corpus, "out": out, "eval_tokens": 16_384, "train": train}
    for name, value in (word.split("=") for word in overrides.split()):
        plain: Any = int(value) if value.isdecimal() else value == "true" if value in ("true", "false") else value
        (train if name.startswith("train.") else settings)[name.removeprefix("train.")] = plain
    return settings


def _run_pretrain(settings: dict[str, Any], gpu: bool) -> tuple[Result, int]:
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    real = api.pretrain(**settings, quiet=True)
    return real, torch.cuda.max_memory_allocated() if gpu else 0


def _format_comparison(planned: Result, actual: Result, peak_memory: int) -> str:
    """Planned / real."""
    weights = (Path(actual["out"]) / "model.safetensors").stat().st_size
    told = [("parameters", planned["parameters"]["all"], actual["parameters"]), ("disk", planned["disk"]["weights"], weights)]
    told += [
        ("seconds", planned["time"]["seconds"], actual["seconds"]),
        ("tokens", planned["time"]["tokens"], actual["tokens"]),
    ]
    told += [("peak", planned["memory"]["peak"], peak_memory)] if peak_memory else []
    return "  ".join(f"{name} {plan:.4g}/{what:.4g} = {plan / what:.2f}" for name, plan, what in told)


def _format_calibration(planned: Result, actual: Result, peak_memory: int, settings: dict[str, Any], machine: Machine) -> str:
    """The numbers of the table under which the plan would have come true."""
    memory, time, train = planned["memory"], planned["time"], settings["train"]
    share = machine.activation_fractions[train.get("compile", False)]
    kept = share * (memory["activations"] + peak_memory - memory["counted"]) / memory["activations"]
    began = time["start"] + time["judging"] + time["saving"]
    seconds = (actual["seconds"] - began) / actual["tokens"]
    products = planned["flops_per_token"] / machine.flops_per_second["bf16"]
    bytes_each = memory["activations"] / share / train["batch_tokens"]
    passes = (seconds - products) * machine.memory_bandwidth / bytes_each
    return f"right: shares {kept:.3f}, passes {passes:.1f} (without recompute), tokens/s {1 / seconds:,.0f}"


if __name__ == "__main__":
    main()
