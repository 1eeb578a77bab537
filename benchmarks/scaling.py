"""Time and memory of every mixer against the length of a text, there and back; on a CPU each in a process of its own.

Keys: lengths=1024,2048,... kinds=dense,window,... device=cpu width=768 heads=12 tokens=N rounds=2 most=60 threads=1
      layers=0 (the mixer alone; else a whole model of so many) recompute=1 compile=1 reversible=1 dropout=0
      out=FOLDER (for time.svg, memory.svg)
`tokens` are of a batch: as many texts as they hold, one at least. A mixer that took more than `most` seconds is not asked
for longer texts. On CUDA in bf16, on a CPU in float32; with one thread, seconds are the processor's own. The
peer is full attention, mixer=dense, at the same length.
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

from bertsmith.config import parse
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import MixerConfig
from bertsmith.model.model import Model, ModelConfig
from bertsmith.model.packing import Layout
from bertsmith.reports.charts import Series
from bertsmith.reports.log_log import loglog

from .material import Material

Row = tuple[str, str, str, str, str]
Work = Callable[[dict[str, Any]], Callable[[], None]]
KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(MixerConfig))
NUMBERS = {"width": 768, "heads": 12, "tokens": 0, "rounds": 2, "threads": 1, "layers": 0}
NUMBERS |= {"recompute": 0, "compile": 0, "reversible": 0}


def run(stuff: Material) -> list[Row]:
    lengths = [int(one) for one in stuff.given.get("lengths", "512,1024,2048,4096,8192").split(",")]
    found = {kind: _grown(stuff, kind, lengths) for kind in stuff.given.get("kinds", ",".join(KINDS)).split(",")}
    if out := stuff.given.get("out"):
        _drawn(Path(out), found)
    return [_row(kind, at, found.get("dense", {})) for kind, taken in found.items() for at in taken.items()]


def _grown(stuff: Material, kind: str, lengths: list[int]) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for length in lengths:
        asked = {name: stuff.number(name, usual) for name, usual in NUMBERS.items()} | {"kind": kind, "length": length}
        asked |= {"device": stuff.given.get("device", "cpu"), "dropout": float(stuff.given.get("dropout", 0))}
        told = here(asked, ours) if asked["device"] == "cuda" else _apart(asked)
        if told is None:
            break
        found[length] = told
        print(kind, length, told, file=sys.stderr, flush=True)
        if told["seconds"] > stuff.number("most", 60):
            break
    return found


def _apart(asked: dict[str, Any]) -> dict[str, float] | None:
    """A process by itself, whose memory is nobody else's; None where there was not enough of it."""
    words = [sys.executable, "-m", "benchmarks.scaling", json.dumps(asked)]
    threads = {"OMP_NUM_THREADS": str(asked["threads"])}
    ran = subprocess.run(words, capture_output=True, text=True, env=os.environ | threads, check=False)
    if ran.returncode:
        print(f"{asked['kind']} at {asked['length']}: {ran.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    told: dict[str, float] = json.loads(ran.stdout)
    return told


def here(asked: dict[str, Any], made: Work) -> dict[str, float] | None:
    """In this process: on CUDA torch counts what each measurement takes; None where there was not enough of it."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        return measured(asked, made)
    except torch.OutOfMemoryError as error:
        print(f"{asked['length']}: {str(error)[:300]}", file=sys.stderr)
        return None


def measured(asked: dict[str, Any], made: Work) -> dict[str, float]:
    """Seconds of one way there and back, and bytes beyond what there was before it."""
    torch.manual_seed(0)
    torch.set_num_threads(asked["threads"])
    step, read = made(asked), {"tokens": float(max(1, asked["tokens"] // asked["length"]) * asked["length"])}
    if asked["device"] == "cuda":
        return read | _on_cuda(step, asked["rounds"])
    before = _now()
    clock = time.process_time if asked["threads"] == 1 else time.perf_counter  # others' work does not lengthen the first
    first = _seconds(step, clock)
    taken = [first] if first > 10 else [_seconds(step, clock) for _ in range(asked["rounds"])]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return read | {"seconds": statistics.median(taken), "bytes": max(most - before, 1.0)}


def ours(asked: dict[str, Any]) -> Callable[[], None]:
    texts = max(1, asked["tokens"] // asked["length"])
    layout = Layout.of([asked["length"]] * texts).to(asked["device"])
    named = {"kind": asked["kind"], **asked.get("mixer", {})}
    fields = next(one.__struct_fields__ for one in get_args(MixerConfig) if one.__struct_config__.tag == asked["kind"])
    mixer: Any = parse(MixerConfig, named | ({"heads": asked["heads"]} if "heads" in fields else {}))  # type: ignore[arg-type]
    if asked["layers"]:
        step, learnt = _whole(asked, mixer, layout)
    else:
        part = mixer.build(asked["width"]).to(asked["device"]).train()
        x = torch.randn(texts * asked["length"], asked["width"], device=asked["device"], requires_grad=True)
        step, learnt = lambda: part(x, layout), [x, *part.parameters()]
    return there_and_back(step, learnt, asked["device"])


def there_and_back(step: Callable[[], Tensor], learnt: Sequence[Tensor], device: str) -> Callable[[], None]:
    """A step of training but for the optimizer, which has let go of the gradients of the step before."""

    def both() -> None:
        for one in learnt:
            one.grad = None
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            out = step()
        out.float().square().mean().backward()

    return both


def _whole(asked: dict[str, Any], mixer: Any, layout: Layout) -> tuple[Callable[[], Tensor], list[Tensor]]:
    encoder = EncoderConfig(
        layers=asked["layers"], width=asked["width"], mixer=mixer, positions=asked["length"], dropout=asked["dropout"],
        reversible=bool(asked["reversible"]), norm="before" if asked["reversible"] else "after",
    )  # fmt: skip
    model = Model(ModelConfig(encoder=encoder, vocabulary=30_522)).to(asked["device"]).train()
    model.encoder.stack.recompute = bool(asked["recompute"])
    if asked["compile"]:
        model.compile_parts()
    inputs = Inputs(torch.randint(5, 30_000, (len(layout.owner),), device=asked["device"]), layout)
    return lambda: model(inputs), list(model.parameters())


def _on_cuda(step: Callable[[], None], rounds: int) -> dict[str, float]:
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = float(torch.cuda.memory_allocated())
    start, count = time.perf_counter(), max(rounds, 5)
    for _ in range(count):  # in a row, as when training: the host need not wait for the device
        step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / count
    return {"seconds": seconds, "bytes": float(torch.cuda.max_memory_allocated()), "held": held}


def _seconds(work: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


def _now() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return float(pages * resource.getpagesize())


def _row(kind: str, at: tuple[int, dict[str, float]], dense: dict[int, dict[str, float]]) -> Row:
    length, told = at
    peer = dense.get(length)
    ratio = f"{peer['seconds'] / told['seconds']:.1f}x" if peer else "-"
    goal = "4x" if (kind, length) == ("window", 8192) else ""
    return f"{kind} at {length:,}", words(told), f"full {words(peer)}" if peer else "-", ratio, goal


def words(told: dict[str, float]) -> str:
    pace = told["tokens"] / told["seconds"]
    held = f" ({told['held'] / 1e9:.2f} held between steps)" if "held" in told else ""
    return f"{told['seconds'] * 1e3:,.0f} ms, {pace:,.0f} tokens/s, {told['bytes'] / 1e9:.2f} GB{held}"


def _drawn(folder: Path, found: dict[str, dict[int, dict[str, float]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, up, title in (("seconds", "seconds", "Time there and back"), ("bytes", "bytes", "Memory")):
        lines = [Series(kind, [(length, told[name]) for length, told in taken.items()]) for kind, taken in found.items()]
        (folder / f"{'time' if name == 'seconds' else 'memory'}.svg").write_bytes(loglog(title, lines, "tokens of a text", up))


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(sys.argv[1]), ours)))
