"""Format a plan as tables, with human-readable sizes and durations."""

from collections.abc import Iterator, Sequence
from typing import Any

Rows = Sequence[tuple[str, ...]]


def format_plan(plan: dict[str, Any]) -> Iterator[tuple[str, Rows]]:
    """(title, rows) of each table."""
    yield "parameters", _parameter_rows(plan["parameters"])
    yield f"memory on {plan['machine']}", _memory_rows(plan["memory"])
    if plan["time"]:
        yield f"time on {plan['machine']} ({'measured' if plan['measured'] else 'estimated'})", _time_rows(plan["time"])
    yield "disk", _disk_rows(plan["disk"])


def _parameter_rows(section: dict[str, Any]) -> Rows:
    counts = {**section["modules"], "encoder": section["encoder"], "total": section["total"]}
    return [(name, f"{count:,}") for name, count in counts.items()]


def _memory_rows(section: dict[str, Any]) -> Rows:
    toggled = f"peak with train.gradient_checkpointing={str(not section['gradient_checkpointing']).lower()}"
    names = {
        "parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer state", "activations": "activations",
        "workspace": "logits and other workspace", "update": "optimizer workspace", "saving": "copies for a checkpoint",
        "peak": "peak", "toggled_peak": toggled, "reserved": "reserved by the allocator, about", "available": "available",
    }  # fmt: skip
    return [(name, format_bytes(section[key])) for key, name in names.items()]


def _time_rows(section: dict[str, Any]) -> Rows:
    rows = [("steps", f"{section['steps']:,}"), ("tokens", f"{section['tokens']:,}")]
    rows += [("epochs", f"{section['epochs']:,.2f}")] if section["epochs"] is not None else []
    rows += [("tokens/s", f"{section['tokens_per_second']:,.0f}")]
    names = {
        "startup": "startup",
        "training": "training",
        "evaluation": "evaluation",
        "saving": "saving",
        "seconds": "total",
    }
    return rows + [(name, format_duration(section[key])) for key, name in names.items()]


def _disk_rows(section: dict[str, Any]) -> Rows:
    names = {
        "checkpoint": "one checkpoint",
        "peak": "peak during the run",
        "final": "after the run",
        "corpus": "corpus",
    }
    return [(name, format_bytes(section[key])) for key, name in names.items() if section[key]]


def format_bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"


def format_duration(seconds: float) -> str:
    """`3.1 s`, `12 min 30 s`, `5 h 02 min`, `11 d 4 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    seconds = round(seconds)
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 // 3600:.0f} h"
