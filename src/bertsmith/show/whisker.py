"""A score and its interval on a line, to stand in a row of a table beside others of the same scale."""

import math

from .page import Html, element

WIDE, HIGH = 240, 20


def whisker(
    low: float, value: float, high: float, scale: tuple[float, float], level: float | None = None, tone: str = "one"
) -> Html:
    """A dot with arms from `low` to `high`; `level` is a dashed line that all rows share. A score that is none is no dot."""
    if math.isnan(value):
        return Html("")
    drawn = []
    if level is not None:
        drawn.append(element("line", x1=_x(level, scale), x2=_x(level, scale), y1=0, y2=HIGH, class_="level"))
    if low < high:
        drawn.append(element("line", x1=_x(low, scale), x2=_x(high, scale), y1=HIGH / 2, y2=HIGH / 2, class_=f"arm {tone}"))
    drawn.append(element("circle", cx=_x(value, scale), cy=HIGH / 2, r=5, class_=f"dot {tone}"))
    said = f"{value:.4g}, from {low:.4g} to {high:.4g}" if low < high else f"{value:.4g}"
    return element("svg", *drawn, viewBox=f"0 0 {WIDE} {HIGH}", class_="whisker", role="img", aria_label=said)


def scale(values: list[float], within: tuple[float, float] = (-math.inf, math.inf)) -> tuple[float, float]:
    """From a round number below all of them to one above."""
    known = [value for value in values if not math.isnan(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-6)))
    rounded = math.floor(low / step) * step, math.ceil(high / step) * step
    return max(rounded[0], within[0]), min(rounded[1], within[1]) if rounded[1] > rounded[0] else rounded[0] + step


def _x(value: float, scale: tuple[float, float]) -> float:
    low, high = scale
    return 8 + (min(max(value, low), high) - low) / (high - low or 1) * (WIDE - 16)
