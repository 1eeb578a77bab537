"""A plan in words: numbers as a person reads them, in rows of a table."""

from collections.abc import Iterator, Sequence
from typing import Any

Rows = Sequence[tuple[str, ...]]


def rows(plan: dict[str, Any]) -> Iterator[tuple[str, Rows]]:
    """Tables with their titles."""
    yield "parameters", _parameters(plan["parameters"])
    yield f"memory on {plan['machine']}", _memory(plan["memory"])
    if plan["time"]:
        yield f"time on {plan['machine']}, {'measured' if plan['measured'] else 'by its table'}", _time(plan["time"])
    yield "disk", _disk(plan["disk"])


def _parameters(found: dict[str, Any]) -> Rows:
    counts = {**found["parts"], "encoder alone": found["encoder"], "all": found["all"]}
    return [(name, f"{count:,}") for name, count in counts.items()]


def _memory(found: dict[str, Any]) -> Rows:
    other = f"the same with train.recompute={str(not found['recompute']).lower()}"
    names = {
        "weights": "weights", "gradients": "gradients", "optimizer": "optimizer's state", "activations": "activations",
        "passing": "logits and what passes by", "update": "while weights move", "saving": "while a checkpoint is written",
        "peak": "most at once", "otherwise": other, "held": "as the system sees it, about", "available": "there are",
    }  # fmt: skip
    return [(name, bytes_of(found[key])) for key, name in names.items()]


def _time(found: dict[str, Any]) -> Rows:
    rows = [("steps", f"{found['steps']:,}"), ("tokens", f"{found['tokens']:,}")]
    rows += [("epochs", f"{found['epochs']:,.2f}")] if found["epochs"] is not None else []
    rows += [("tokens/s", f"{found['tokens_per_second']:,.0f}")]
    names = {
        "start": "starting",
        "training": "training",
        "judging": "evaluations",
        "saving": "checkpoints",
        "seconds": "in all",
    }
    return rows + [(name, clock(found[key])) for key, name in names.items()]


def _disk(found: dict[str, Any]) -> Rows:
    names = {
        "checkpoint": "a checkpoint",
        "most": "most at once, while it trains",
        "left": "when it is done",
        "corpus": "corpus",
    }
    return [(name, bytes_of(found[key])) for key, name in names.items() if found[key]]


def bytes_of(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"


def clock(seconds: float) -> str:
    """`3.1 s`, `12 min 30 s`, `5 h 02 min`, `11 d 4 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    seconds = round(seconds)
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 // 3600:.0f} h"
