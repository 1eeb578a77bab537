"""A finding of `bertsmith doctor`: the observation, what it means, and how to fix it."""

from typing import Literal

import msgspec

Severity = Literal["problem", "note"]


class Finding(msgspec.Struct, frozen=True):
    """A `problem` spoils the run; a `note` is worth knowing and may be intended."""

    name: str
    severity: Severity
    seen: str  # the observation, with numbers
    means: str
    way_out: str
    setting: str | None = None  # a recipe setting, key=value, that fixes it; None where no setting does


def format_number(value: float) -> str:
    """Two significant digits, in a form that recipes accept: 0.0003, 12000, 1e-07."""
    return f"{value:.2g}" if abs(value) < 10 else f"{round(value)}"
