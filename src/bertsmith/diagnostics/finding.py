"""One thing that is not as it should be: what was seen, what it means, the way out."""

from typing import Literal

import msgspec

Severity = Literal["problem", "note"]


class Finding(msgspec.Struct, frozen=True):
    """A problem spoils the run; a note is worth knowing and may be meant so."""

    name: str
    severity: Severity
    seen: str  # with the numbers
    means: str
    way_out: str
    setting: str | None = None  # what to type, as key=value; none where no setting helps


def format_number(value: float) -> str:
    """Short, and as a recipe takes it: 0.0003, 12000, 1e-07."""
    return f"{value:.2g}" if abs(value) < 10 else f"{round(value)}"
