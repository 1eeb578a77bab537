"""Charts as inline SVG: line charts, bar charts and whiskers; colors are classes of the page's style sheet."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from .html import Html, element

COLORS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
FULL_WIDTH, HALF_WIDTH, HEIGHT = 900, 430, 280  # two charts of HALF_WIDTH fit side by side
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 52, 14, 10, 42
MAX_POINTS = 500  # points of a line: more than a screen can resolve
WHISKER_WIDTH, WHISKER_HEIGHT = 240, 20
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Named (x, y) points sorted by x; `dots` for single measurements, `line` for continuous curves."""

    name: str
    points: Sequence[Point]
    style: Literal["line", "dots"] = "line"


def extract_points(rows: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    """(step, value) of the rows in which `name` is a finite number."""
    pairs = ((row["step"], row.get(name)) for row in rows)
    return [(x, float(y)) for x, y in pairs if isinstance(y, int | float) and not isinstance(y, bool) and math.isfinite(y)]


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    reference: tuple[str, float] | None = None,
    include_zero: bool = False,
    width: int = FULL_WIDTH,
) -> Html:
    """A figure; `reference` is a named dashed horizontal line, `include_zero` extends the y axis to 0."""
    sampled = [Series(s.name, downsample(s.points), s.style) for s in series]
    points = [point for s in sampled for point in s.points]
    if not points:
        return element("figure", element("figcaption", title), element("p", "Nothing was measured yet.", class_="note"))
    y_values = [y for _, y in points] + ([reference[1]] if reference else []) + ([0.0] if include_zero else [])
    axes = Axes((min(x for x, _ in points), max(x for x, _ in points)), compute_ticks(min(y_values), max(y_values)), width)
    colors = dict(zip((s.name for s in sampled), COLORS, strict=False))
    shapes = [shape for s in sampled for shape in _draw_series(axes, s, colors[s.name], x_label)]
    legend = [(s.name, colors[s.name], s.style) for s in sampled if s.points] + (
        [(reference[0], "level", "level")] if reference else []
    )
    reference_line = [axes.horizontal_line(reference[1], "level")] if reference else []
    svg = element(
        "svg", *axes.draw_grid(x_label), *reference_line, *shapes, viewBox=f"0 0 {width} {HEIGHT}", role="img", aria_label=title
    )
    legend_html = element("div", *(_legend_entry(*entry) for entry in legend), class_="legend") if len(legend) > 1 else Html("")
    return element("figure", element("figcaption", title), legend_html, svg)


def bar_chart(title: str, counts: Mapping[str, int], x_label: str, width: int = HALF_WIDTH) -> Html:
    """One bar per name with its count above it."""
    if not counts:
        return element("figure", element("figcaption", title), element("p", "Nothing was counted.", class_="note"))
    step = (width - LEFT_MARGIN - RIGHT_MARGIN) / len(counts)
    axes = Axes((0, 1), compute_ticks(0, max(counts.values())), width)
    shapes = []
    for index, (name, count) in enumerate(counts.items()):
        x, y, center = LEFT_MARGIN + index * step, axes.y(count), LEFT_MARGIN + (index + 0.5) * step
        bar = element("rect", element("title", f"{name}: {count:,}"), class_="bar", x=x + step * 0.12, y=y,
                      width=step * 0.76, height=axes.y(0) - y, rx=3)  # fmt: skip
        shapes += [bar, element("text", format_compact(count), x=center, y=y - 5, text_anchor="middle", class_="value"),
                   element("text", name, x=center, y=HEIGHT - BOTTOM_MARGIN + 17, text_anchor="middle")]  # fmt: skip
    grid = axes.draw_grid(x_label, label_x_ticks=False)
    svg = element("svg", *grid, *shapes, viewBox=f"0 -12 {width} {HEIGHT + 12}", role="img", aria_label=title)
    return element("figure", element("figcaption", title), svg)


def whisker(
    low: float, value: float, high: float, x_range: tuple[float, float], reference: float | None = None, color: str = "one"
) -> Html:
    """A dot with an error bar from `low` to `high`; `reference` is a dashed vertical line. Empty for a NaN value."""
    if math.isnan(value):
        return Html("")
    shapes = []
    if reference is not None:
        shapes.append(
            element(
                "line",
                x1=_whisker_x(reference, x_range),
                x2=_whisker_x(reference, x_range),
                y1=0,
                y2=WHISKER_HEIGHT,
                class_="level",
            )
        )
    if low < high:
        shapes.append(
            element(
                "line",
                x1=_whisker_x(low, x_range),
                x2=_whisker_x(high, x_range),
                y1=WHISKER_HEIGHT / 2,
                y2=WHISKER_HEIGHT / 2,
                class_=f"arm {color}",
            )
        )
    shapes.append(element("circle", cx=_whisker_x(value, x_range), cy=WHISKER_HEIGHT / 2, r=5, class_=f"dot {color}"))
    label = f"{value:.4g}, from {low:.4g} to {high:.4g}" if low < high else f"{value:.4g}"
    return element(
        "svg", *shapes, viewBox=f"0 0 {WHISKER_WIDTH} {WHISKER_HEIGHT}", class_="whisker", role="img", aria_label=label
    )


@dataclass(frozen=True)
class Axes:
    """Maps values to SVG coordinates; the x axis ends at the data, the y axis at its outermost ticks."""

    x_range: tuple[float, float]
    y_ticks: Sequence[float]
    width: int = FULL_WIDTH

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT_MARGIN + ((value - low) / (high - low) if high > low else 0.5) * (self.width - LEFT_MARGIN - RIGHT_MARGIN)

    def y(self, value: float) -> float:
        return (
            HEIGHT
            - BOTTOM_MARGIN
            - (value - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0]) * (HEIGHT - TOP_MARGIN - BOTTOM_MARGIN)
        )

    def draw_grid(self, x_label: str, label_x_ticks: bool = True) -> list[Html]:
        """Horizontal grid lines, tick labels and the label of the x axis."""
        shapes: list[Html] = []
        for value in self.y_ticks:
            label = element("text", format_compact(value), x=LEFT_MARGIN - 8, y=self.y(value) + 4, text_anchor="end")
            shapes += [self.horizontal_line(value, "grid"), label]
        if label_x_ticks:
            shapes += [
                element("text", format_compact(v), x=self.x(v), y=HEIGHT - BOTTOM_MARGIN + 17, text_anchor="middle")
                for v in self.x_ticks()
            ]
        axis_label = element(
            "text", x_label, x=(LEFT_MARGIN + self.width - RIGHT_MARGIN) / 2, y=HEIGHT - 4, text_anchor="middle"
        )
        return [*shapes, self.horizontal_line(self.y_ticks[0], "axis"), axis_label]

    def x_ticks(self) -> list[float]:
        """Round values within the x range; the value itself where the range is a single point."""
        low, high = self.x_range
        return [value for value in compute_ticks(low, high) if low <= value <= high] if high > low else [low]

    def horizontal_line(self, value: float, css_class: str) -> Html:
        """A line across the chart at y = `value`."""
        return element(
            "line", x1=LEFT_MARGIN, x2=self.width - RIGHT_MARGIN, y1=self.y(value), y2=self.y(value), class_=css_class
        )


def compute_ticks(low: float, high: float, target_count: int = 5) -> list[float]:
    """Evenly spaced round numbers from at most `low` to at least `high`; at least two, also where low == high."""
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-290):
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if abs(low) > 1e-280 else (min(low, 0.0), 1.0)
    size = 10.0 ** math.floor(math.log10((high - low) / target_count))
    step = next(size * multiple for multiple in (1, 2, 2.5, 5, 10) if (high - low) / (size * multiple) <= target_count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def compute_axis_range(values: list[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> tuple[float, float]:
    """(low, high) rounded outwards to a power of ten of their range, clipped to `bounds`; NaN is ignored."""
    finite = [value for value in values if not math.isnan(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-6)))
    rounded = math.floor(low / step) * step, math.ceil(high / step) * step
    return max(rounded[0], bounds[0]), min(rounded[1], bounds[1]) if rounded[1] > rounded[0] else rounded[0] + step


def downsample(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """At most `max_points` points, each the mean of consecutive points where there are more."""
    if len(points) <= max_points:
        return list(points)
    edges = [len(points) * i // max_points for i in range(max_points + 1)]
    groups = (points[a:b] for a, b in pairwise(edges))
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def format_compact(value: float) -> str:
    """12,300 as 12.3k: short enough for axis labels."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2g}"


def _draw_series(axes: Axes, series: Series, color: str, x_label: str) -> list[Html]:
    pixels = [(axes.x(x), axes.y(y)) for x, y in series.points]
    shapes = []
    if len(pixels) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        opacity = 0.45 if series.style == "dots" else None
        shapes.append(element("polyline", points=path, class_=f"curve {color}", stroke_opacity=opacity))
    if series.style == "dots" or len(pixels) == 1:
        for (x, y), (step, value) in zip(pixels, series.points, strict=True):
            tooltip = element("title", f"{series.name}: {value:.4g} at {x_label} {step:,.8g}")
            shapes.append(element("circle", tooltip, cx=x, cy=y, r=4, class_=f"dot {color}"))
    return shapes


def _legend_entry(name: str, color: str, style: str) -> Html:
    stroke = element("line", x1=0, x2=28, y1=6, y2=6, class_=color if style == "level" else f"curve {color}")
    dot = [element("circle", cx=14, cy=6, r=4, class_=f"dot {color}")] if style == "dots" else []
    return element("span", element("svg", stroke, *dot, viewBox="0 0 28 12", aria_hidden="true"), name)


def _whisker_x(value: float, x_range: tuple[float, float]) -> float:
    low, high = x_range
    return 8 + (min(max(value, low), high) - low) / (high - low or 1) * (WHISKER_WIDTH - 16)
