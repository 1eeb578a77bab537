"""Plans of five runs against the runs themselves.

On a GPU each run is planned twice: from the table of machines, and by measuring. The last column has the values of the
table with which the plan would have been exact.
"""

from pathlib import Path
from typing import Any

import torch

from bertsmith import api
from bertsmith.planning.machines import MACHINES, Machine

from .inputs import BenchmarkInputs

GPU_RUNS = [
    "model=bert-base train.batch_tokens=65536",
    "model=bert-base train.batch_tokens=32768 train.gradient_accumulation_steps=2 max_length=512",
    "model=bert-base train.batch_tokens=65536 train.compile=true",
    "model=bert-large train.batch_tokens=32768 train.gradient_checkpointing=true",
    "model=bert-medium train.batch_tokens=131072 train.optimizer=lamb objective=mlm",
]
CPU_RUNS = [
    "model=bert-mini train.batch_tokens=2048",
    "model=bert-mini train.batch_tokens=1024 train.gradient_accumulation_steps=3 train.optimizer=lamb",
    "model=bert-mini train.batch_tokens=2048 train.gradient_checkpointing=true",
    "model=bert-tiny train.batch_tokens=4096 max_length=64 objective=mlm",
    "model=bert-small train.batch_tokens=512",
]
Result = dict[str, Any]


def run(bench: BenchmarkInputs) -> list[tuple[str, str, str, str, str]]:
    """Prints the comparisons, which do not fit the common table."""
    use_gpu = torch.cuda.is_available()
    corpus = str(bench.folder / "corpus")
    texts = [str(path) for path in bench.texts]
    api.prepare(texts=texts, tokenizer=str(bench.tokenizer), out=corpus, quiet=True)
    for index, overrides in enumerate(GPU_RUNS if use_gpu else CPU_RUNS):
        settings = _parse_settings(
            overrides, corpus, str(bench.folder / f"run{index}"), bench.int_option("steps", 200 if use_gpu else 40), use_gpu
        )
        plans = [("measured", api.plan(**settings, quiet=True))]
        plans += [("table", api.plan(**settings, machine="h200", quiet=True))] if use_gpu else []
        actual, peak_memory = _run_pretrain(settings, use_gpu)
        for method, plan in plans:
            print(f"{overrides:74} {method:9} {_format_comparison(plan, actual, peak_memory)}", flush=True)
        if use_gpu:
            print(f"{'':74} {_format_calibration(plans[1][1], actual, peak_memory, settings, MACHINES['h200'])}", flush=True)
    return []


def _parse_settings(overrides: str, corpus: str, out: str, steps: int, use_gpu: bool) -> dict[str, Any]:
    train: dict[str, Any] = {"steps": steps, "precision": "bf16", "workers": 8} if use_gpu else {"steps": steps}
    settings: dict[str, Any] = {"corpus": corpus, "out": out, "eval_tokens": 16_384, "train": train}
    for name, value in (override.split("=") for override in overrides.split()):
        parsed: Any = int(value) if value.isdecimal() else value == "true" if value in ("true", "false") else value
        (train if name.startswith("train.") else settings)[name.removeprefix("train.")] = parsed
    return settings


def _run_pretrain(settings: dict[str, Any], use_gpu: bool) -> tuple[Result, int]:
    if use_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    result = api.pretrain(**settings, quiet=True)
    return result, torch.cuda.max_memory_allocated() if use_gpu else 0


def _format_comparison(planned: Result, actual: Result, peak_memory: int) -> str:
    """planned/actual = ratio of each quantity."""
    weights = (Path(actual["out"]) / "model.safetensors").stat().st_size
    quantities = [
        ("parameters", planned["parameters"]["total"], actual["parameters"]),
        ("disk", planned["disk"]["weights"], weights),
    ]
    quantities += [
        ("seconds", planned["time"]["seconds"], actual["seconds"]),
        ("tokens", planned["time"]["tokens"], actual["tokens"]),
    ]
    quantities += [("peak", planned["memory"]["peak"], peak_memory)] if peak_memory else []
    return "  ".join(
        f"{name} {planned_value:.4g}/{actual_value:.4g} = {planned_value / actual_value:.2f}"
        for name, planned_value, actual_value in quantities
    )


def _format_calibration(planned: Result, actual: Result, peak_memory: int, settings: dict[str, Any], machine: Machine) -> str:
    """The values of the machine table with which the plan would have been exact."""
    memory, time, train = planned["memory"], planned["time"], settings["train"]
    table_fraction = machine.activation_fractions[train.get("compile", False)]
    activation_fraction = (
        table_fraction * (memory["activations"] + peak_memory - memory["estimated_peak"]) / memory["activations"]
    )
    overhead = time["startup"] + time["evaluation"] + time["saving"]
    seconds_per_token = (actual["seconds"] - overhead) / actual["tokens"]
    matmul_seconds = planned["flops_per_token"] / machine.flops_per_second["bf16"]
    bytes_per_token = memory["activations"] / table_fraction / train["batch_tokens"]
    activation_passes = (seconds_per_token - matmul_seconds) * machine.memory_bandwidth / bytes_per_token
    speed = 1 / seconds_per_token
    passes = f"{activation_passes:.1f} (without gradient checkpointing)"
    return f"exact: fractions {activation_fraction:.3f}, passes {passes}, {speed:,.0f} tokens/s"
