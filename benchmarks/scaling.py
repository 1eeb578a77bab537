"""Time and memory of every mixer by sequence length, forward and backward; on a CPU each in a process of its own.

A batch has `batch_tokens` tokens in sequences of equal length, at least one sequence. With `num_hidden_layers=0` the mixer is
measured alone, else in a model of as many layers. A mixer that took more than `max_seconds` is not measured at greater
lengths. On CUDA in bf16, on a CPU in float32; with one thread, seconds are CPU time. The peer is full attention,
mixer=attention, at the same length.
"""

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from bertsmith.config import from_dict
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import MixerConfig
from bertsmith.model.model import Model, ModelConfig
from bertsmith.model.packing import Layout
from bertsmith.reports.charts import Series, loglog_chart

from .inputs import BenchmarkInputs

Row = tuple[str, str, str, str, str]
StepBuilder = Callable[[dict[str, Any]], Callable[[], None]]
MIXER_KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(MixerConfig))
INT_OPTIONS = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "batch_tokens": 0,
    "rounds": 2,
    "threads": 1,
    "num_hidden_layers": 0,
}
INT_OPTIONS |= {"gradient_checkpointing": 0, "compile": 0, "reversible": 0}


def run(bench: BenchmarkInputs) -> list[Row]:
    lengths = [int(item) for item in bench.options.get("lengths", "512,1024,2048,4096,8192").split(",")]
    results = {
        kind: _measure_lengths(bench, kind, lengths) for kind in bench.options.get("kinds", ",".join(MIXER_KINDS)).split(",")
    }
    if out := bench.options.get("out"):
        _write_charts(Path(out), results)
    return [
        _format_row(kind, measurement, results.get("attention", {}))
        for kind, by_length in results.items()
        for measurement in by_length.items()
    ]


def _measure_lengths(bench: BenchmarkInputs, kind: str, lengths: list[int]) -> dict[int, dict[str, float]]:
    results: dict[int, dict[str, float]] = {}
    for length in lengths:
        spec = {name: bench.int_option(name, default) for name, default in INT_OPTIONS.items()} | {
            "kind": kind,
            "length": length,
        }
        spec |= {
            "device": bench.options.get("device", "cpu"),
            "hidden_dropout_prob": float(bench.options.get("hidden_dropout_prob", 0)),
        }
        result = measure_in_process(spec, build_our_step) if spec["device"] == "cuda" else _measure_in_subprocess(spec)
        if result is None:
            break
        results[length] = result
        print(kind, length, result, file=sys.stderr, flush=True)
        if result["seconds"] > bench.int_option("max_seconds", 60):
            break
    return results


def _measure_in_subprocess(spec: dict[str, Any]) -> dict[str, float] | None:
    """`measure` in a process of its own, so that its memory can be read; None if it ran out of memory."""
    command = [sys.executable, "-m", "benchmarks.scaling", json.dumps(spec)]
    threads = {"OMP_NUM_THREADS": str(spec["threads"])}
    process = subprocess.run(command, capture_output=True, text=True, env=os.environ | threads, check=False)
    if process.returncode:
        print(f"{spec['kind']} at {spec['length']}: {process.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    result: dict[str, float] = json.loads(process.stdout)
    return result


def measure_in_process(spec: dict[str, Any], build_step: StepBuilder) -> dict[str, float] | None:
    """`measure` in this process, for CUDA, where torch counts the memory; None if it ran out of memory."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        return measure(spec, build_step)
    except torch.OutOfMemoryError as error:
        print(f"{spec['length']}: {str(error)[:300]}", file=sys.stderr)
        return None


def measure(spec: dict[str, Any], build_step: StepBuilder) -> dict[str, float]:
    """Seconds of forward and backward, tokens, and bytes above those before it."""
    torch.manual_seed(0)
    torch.set_num_threads(spec["threads"])
    step, size = build_step(spec), {"tokens": float(max(1, spec["batch_tokens"] // spec["length"]) * spec["length"])}
    if spec["device"] == "cuda":
        return size | _measure_cuda(step, spec["rounds"])
    bytes_before = _resident_bytes()
    clock = time.process_time if spec["threads"] == 1 else time.perf_counter  # CPU time is not affected by other processes
    first = _time_call(step, clock)
    times = [first] if first > 10 else [_time_call(step, clock) for _ in range(spec["rounds"])]
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return size | {"seconds": statistics.median(times), "bytes": max(peak_bytes - bytes_before, 1.0)}


def build_our_step(spec: dict[str, Any]) -> Callable[[], None]:
    batch_size = max(1, spec["batch_tokens"] // spec["length"])
    layout = Layout.from_lengths([spec["length"]] * batch_size).to(spec["device"])
    settings = {"kind": spec["kind"], **spec.get("mixer", {})}
    fields = next(config.__struct_fields__ for config in get_args(MixerConfig) if config.__struct_config__.tag == spec["kind"])
    heads = {name: spec[name] for name in ("num_attention_heads",) if name in fields}
    mixer: Any = from_dict(MixerConfig, settings | heads)  # type: ignore[arg-type]
    if spec["num_hidden_layers"]:
        forward, grad_tensors = _build_model_forward(spec, mixer, layout)
    else:
        layer = mixer.build(spec["hidden_size"]).to(spec["device"]).train()
        x = torch.randn(batch_size * spec["length"], spec["hidden_size"], device=spec["device"], requires_grad=True)
        forward, grad_tensors = lambda: layer(x, layout), [x, *layer.parameters()]
    return build_forward_backward(forward, grad_tensors, spec["device"])


def build_forward_backward(forward: Callable[[], Tensor], grad_tensors: Sequence[Tensor], device: str) -> Callable[[], None]:
    """A training step without the optimizer: gradients reset, forward, backward."""

    def forward_backward() -> None:
        for tensor in grad_tensors:
            tensor.grad = None
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            out = forward()
        out.float().square().mean().backward()

    return forward_backward


def _build_model_forward(spec: dict[str, Any], mixer: Any, layout: Layout) -> tuple[Callable[[], Tensor], list[Tensor]]:
    encoder = EncoderConfig(
        num_hidden_layers=spec["num_hidden_layers"], hidden_size=spec["hidden_size"], mixer=mixer,
        max_position_embeddings=spec["length"], hidden_dropout_prob=spec["hidden_dropout_prob"],
        reversible=bool(spec["reversible"]), norm="pre" if spec["reversible"] else "post",
    )  # fmt: skip
    model = Model(ModelConfig(encoder=encoder, vocab_size=30_522)).to(spec["device"]).train()
    model.encoder.stack.gradient_checkpointing = bool(spec["gradient_checkpointing"])
    if spec["compile"]:
        model.compile_parts()
    inputs = Inputs(torch.randint(5, 30_000, (len(layout.seq_id),), device=spec["device"]), layout)
    return lambda: model(inputs), list(model.parameters())


def _measure_cuda(step: Callable[[], None], rounds: int) -> dict[str, float]:
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    bytes_held = float(torch.cuda.memory_allocated())
    start, num_steps = time.perf_counter(), max(rounds, 5)
    for _ in range(num_steps):  # without synchronization between steps, as in training
        step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / num_steps
    return {"seconds": seconds, "bytes": float(torch.cuda.max_memory_allocated()), "held": bytes_held}


def _time_call(fn: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    fn()
    return clock() - start


def _resident_bytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return float(pages * resource.getpagesize())


def _format_row(kind: str, measurement: tuple[int, dict[str, float]], dense_results: dict[int, dict[str, float]]) -> Row:
    length, result = measurement
    peer = dense_results.get(length)
    ratio = f"{peer['seconds'] / result['seconds']:.1f}x" if peer else "-"
    goal = "4x" if (kind, length) == ("longformer", 8192) else ""
    return f"{kind} at {length:,}", format_result(result), f"full {format_result(peer)}" if peer else "-", ratio, goal


def format_result(result: dict[str, float]) -> str:
    tokens_per_second = result["tokens"] / result["seconds"]
    held = f" ({result['held'] / 1e9:.2f} held between steps)" if "held" in result else ""
    return f"{result['seconds'] * 1e3:,.0f} ms, {tokens_per_second:,.0f} tokens/s, {result['bytes'] / 1e9:.2f} GB{held}"


def _write_charts(folder: Path, results: dict[str, dict[int, dict[str, float]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, y_label, title in (("seconds", "seconds", "Time of forward and backward"), ("bytes", "bytes", "Memory")):
        series = [
            Series(kind, [(length, result[name]) for length, result in by_length.items()])
            for kind, by_length in results.items()
        ]
        (folder / f"{'time' if name == 'seconds' else 'memory'}.svg").write_bytes(
            loglog_chart(title, series, "sequence length in tokens", y_label)
        )


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]), build_our_step)))
