"""A finding of `bertsmith doctor`: an observation, its explanation, and a suggestion."""

from typing import Literal

import msgspec

Severity = Literal["problem", "note"]


class Finding(msgspec.Struct, frozen=True):
    """A `problem` makes the result useless or worse than it could be; a `note` may be intended."""

    name: str
    severity: Severity
    observation: str  # with numbers
    explanation: str
    suggestion: str
    setting: str | None = None  # a recipe setting, key=value, that fixes it; None where no setting does


def format_number(value: float) -> str:
    """Two significant digits, in a form that recipes accept: 0.0003, 12000, 1e-07."""
    return f"{value:.2g}" if abs(value) < 10 else f"{round(value)}"
