"""Escaped SVG elements, and axes with linear or logarithmic scales."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

COLORS = ("one", "two", "three", "four", "five", "six", "seven", "eight")  # classes of the style sheet
FULL_WIDTH, HALF_WIDTH, HEIGHT = 900, 430, 280  # two charts of HALF_WIDTH fit side by side


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element: text and attributes are escaped, `Markup` is not; None omits an attribute, `class_` stands for `class`."""
    pairs = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None]
    rendered = Markup("").join(
        Markup(' {}="{}"').format(key, value if isinstance(value, str) else f"{value:.6g}") for key, value in pairs
    )
    content = Markup("").join(escape(child) for child in children)
    return Markup(f"<{name}{rendered}>{content}</{name}>" if children else f"<{name}{rendered}/>")


@dataclass(frozen=True)
class Frame:
    """Size of a chart and of the margins around its plot area, in pixels."""

    width: int = FULL_WIDTH
    height: int = HEIGHT
    left: int = 58
    right: int = 14
    top: int = 10
    bottom: int = 42


@dataclass(frozen=True)
class Axes:
    """Maps values to pixels; a logarithmic axis takes positive values only."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    frame: Frame = Frame()
    x_log: bool = False
    y_log: bool = False

    def x(self, value: float) -> float:
        frame = self.frame
        return frame.left + _position(value, self.x_range, self.x_log) * (frame.width - frame.left - frame.right)

    def y(self, value: float) -> float:
        frame = self.frame
        return self.bottom - _position(value, self.y_range, self.y_log) * (frame.height - frame.top - frame.bottom)

    @property
    def bottom(self) -> int:
        """The y coordinate of the x axis."""
        return self.frame.height - self.frame.bottom

    def horizontal_line(self, value: float, css_class: str) -> Markup:
        """A line across the plot area at y = `value`."""
        y = self.y(value)
        return tag("line", x1=self.frame.left, x2=self.frame.width - self.frame.right, y1=y, y2=y, class_=css_class)

    def vertical_line(self, value: float, css_class: str) -> Markup:
        """A line across the plot area at x = `value`."""
        x = self.x(value)
        return tag("line", x1=x, x2=x, y1=self.frame.top, y2=self.bottom, class_=css_class)

    def draw_y_grid(self, ticks: Sequence[float]) -> list[Markup]:
        """Horizontal grid lines with their values to the left."""
        left = self.frame.left - 8
        labels = [tag("text", format_compact(tick), x=left, y=self.y(tick) + 4, text_anchor="end") for tick in ticks]
        return [*(self.horizontal_line(tick, "grid") for tick in ticks), *labels]

    def draw_x_labels(self, ticks: Iterable[tuple[float, str]], label: str) -> list[Markup]:
        """(value, text) below the x axis, and the label of the axis."""
        texts = [tag("text", text, x=self.x(value), y=self.bottom + 17, text_anchor="middle") for value, text in ticks]
        middle = (self.frame.left + self.frame.width - self.frame.right) / 2
        return [*texts, tag("text", label, x=middle, y=self.frame.height - 4, text_anchor="middle")]


def compute_ticks(low: float, high: float, target_count: int = 5) -> list[float]:
    """Evenly spaced round numbers from at most `low` to at least `high`; at least two, also where low == high."""
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-290):
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if abs(low) > 1e-280 else (min(low, 0.0), 1.0)
    size = 10.0 ** math.floor(math.log10((high - low) / target_count))
    step = next(size * multiple for multiple in (1, 2, 2.5, 5, 10) if (high - low) / (size * multiple) <= target_count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def log_ticks(low: float, high: float, multiples: Sequence[int]) -> list[float]:
    """The given multiples of powers of ten within [low, high]."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [multiple * 10.0**power for power in powers for multiple in multiples]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def compute_axis_range(values: list[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> tuple[float, float]:
    """(low, high) rounded outwards to a power of ten of their range, clipped to `bounds`; NaN is ignored."""
    finite = [value for value in values if not math.isnan(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-6)))
    rounded = math.floor(low / step) * step, math.ceil(high / step) * step
    return max(rounded[0], bounds[0]), min(rounded[1], bounds[1]) if rounded[1] > rounded[0] else rounded[0] + step


def format_compact(value: float) -> str:
    """12,300 as 12.3k: short enough for axis labels."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2g}"


def _position(value: float, limits: tuple[float, float], is_log: bool) -> float:
    """Where `value` lies between the limits, from 0 to 1; 0.5 if they are equal."""
    low, high = map(math.log, limits) if is_log else limits
    return ((math.log(value) if is_log else value) - low) / (high - low) if high > low else 0.5
