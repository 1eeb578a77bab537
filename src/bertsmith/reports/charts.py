"""Charts as inline SVG: lines against steps, and bars; colours come from the page's sheet."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from .html import Html, element

COLORS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
FULL_WIDTH, HALF_WIDTH, HEIGHT = 900, 430, 280  # two of half the width stand side by side
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 52, 14, 10, 42
MAX_POINTS = 500  # points of a line: more than a screen can show apart

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Named points in order of x; dots stand for single measurements, a line for something that goes on."""

    name: str
    points: Sequence[Point]
    style: Literal["line", "dots"] = "line"


def extract_points(rows: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    """(step, value) of the rows that have the value; what is no number, or no finite one, is left out."""
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
    """One figure; `level` is a dashed line with a name, `zero` makes the upright axis begin at 0."""
    drawn = [Series(s.name, downsample(s.points), s.style) for s in series]
    every = [point for s in drawn for point in s.points]
    if not every:
        return element("figure", element("figcaption", title), element("p", "Nothing was measured yet.", class_="note"))
    heights = [y for _, y in every] + ([reference[1]] if reference else []) + ([0.0] if include_zero else [])
    frame = Axes((min(x for x, _ in every), max(x for x, _ in every)), compute_ticks(min(heights), max(heights)), width)
    tones = dict(zip((s.name for s in drawn), COLORS, strict=False))
    shapes = [shape for s in drawn for shape in _draw_series(frame, s, tones[s.name], x_label)]
    legend = [(s.name, tones[s.name], s.style) for s in drawn if s.points] + (
        [(reference[0], "level", "level")] if reference else []
    )
    dashed = [frame.horizontal_line(reference[1], "level")] if reference else []
    svg = element(
        "svg", *frame.draw_grid(x_label), *dashed, *shapes, viewBox=f"0 0 {width} {HEIGHT}", role="img", aria_label=title
    )
    shown = element("div", *(_legend_entry(*entry) for entry in legend), class_="legend") if len(legend) > 1 else Html("")
    return element("figure", element("figcaption", title), shown, svg)


def bar_chart(title: str, counts: Mapping[str, int], x_label: str, width: int = HALF_WIDTH) -> Html:
    """One bar a name, its count above it."""
    if not counts:
        return element("figure", element("figcaption", title), element("p", "Nothing was counted.", class_="note"))
    step = (width - LEFT_MARGIN - RIGHT_MARGIN) / len(counts)
    frame = Axes((0, 1), compute_ticks(0, max(counts.values())), width)
    shapes = []
    for number, (name, count) in enumerate(counts.items()):
        x, y, middle = LEFT_MARGIN + number * step, frame.y(count), LEFT_MARGIN + (number + 0.5) * step
        bar = element("rect", element("title", f"{name}: {count:,}"), class_="bar", x=x + step * 0.12, y=y,
                      width=step * 0.76, height=frame.y(0) - y, rx=3)  # fmt: skip
        shapes += [bar, element("text", format_compact(count), x=middle, y=y - 5, text_anchor="middle", class_="value"),
                   element("text", name, x=middle, y=HEIGHT - BOTTOM_MARGIN + 17, text_anchor="middle")]  # fmt: skip
    grid = frame.draw_grid(x_label, label_x_ticks=False)
    svg = element("svg", *grid, *shapes, viewBox=f"0 -12 {width} {HEIGHT + 12}", role="img", aria_label=title)
    return element("figure", element("figcaption", title), svg)


@dataclass(frozen=True)
class Axes:
    """Where values lie on the drawing: across it ends with the data, upright with a tick."""

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
        """Faint lines at the ticks, their numbers, and what is counted across."""
        made: list[Html] = []
        for value in self.y_ticks:
            number = element("text", format_compact(value), x=LEFT_MARGIN - 8, y=self.y(value) + 4, text_anchor="end")
            made += [self.horizontal_line(value, "grid"), number]
        if label_x_ticks:
            made += [
                element("text", format_compact(v), x=self.x(v), y=HEIGHT - BOTTOM_MARGIN + 17, text_anchor="middle")
                for v in self.x_ticks()
            ]
        name = element("text", x_label, x=(LEFT_MARGIN + self.width - RIGHT_MARGIN) / 2, y=HEIGHT - 4, text_anchor="middle")
        return [*made, self.horizontal_line(self.y_ticks[0], "axis"), name]

    def x_ticks(self) -> list[float]:
        """The ticks across that lie within; a lone point is its own tick."""
        low, high = self.x_range
        return [value for value in compute_ticks(low, high) if low <= value <= high] if high > low else [low]

    def horizontal_line(self, value: float, css_class: str) -> Html:
        """A line across at this height."""
        return element(
            "line", x1=LEFT_MARGIN, x2=self.width - RIGHT_MARGIN, y1=self.y(value), y2=self.y(value), class_=css_class
        )


def compute_ticks(low: float, high: float, target_count: int = 5) -> list[float]:
    """Round numbers, evenly spaced, from at most `low` to at least `high`; two at least, also where both are one number."""
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-290):
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if abs(low) > 1e-280 else (min(low, 0.0), 1.0)
    size = 10.0 ** math.floor(math.log10((high - low) / target_count))
    step = next(size * times for times in (1, 2, 2.5, 5, 10) if (high - low) / (size * times) <= target_count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def downsample(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """At most so many points: where there are more, each is the mean of its neighbours."""
    if len(points) <= max_points:
        return list(points)
    edges = [len(points) * i // max_points for i in range(max_points + 1)]
    groups = (points[a:b] for a, b in pairwise(edges))
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def format_compact(value: float) -> str:
    """12,300 as 12.3k: what fits beside an axis."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2g}"


def _draw_series(axes: Axes, series: Series, color: str, x_label: str) -> list[Html]:
    places = [(axes.x(x), axes.y(y)) for x, y in series.points]
    made = []
    if len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        faint = 0.45 if series.style == "dots" else None
        made.append(element("polyline", points=path, class_=f"curve {color}", stroke_opacity=faint))
    if series.style == "dots" or len(places) == 1:
        for (x, y), (step, value) in zip(places, series.points, strict=True):
            told = element("title", f"{series.name}: {value:.4g} at {x_label} {step:,.8g}")
            made.append(element("circle", told, cx=x, cy=y, r=4, class_=f"dot {color}"))
    return made


def _legend_entry(name: str, color: str, style: str) -> Html:
    stroke = element("line", x1=0, x2=28, y1=6, y2=6, class_=color if style == "level" else f"curve {color}")
    dot = [element("circle", cx=14, cy=6, r=4, class_=f"dot {color}")] if style == "dots" else []
    return element("span", element("svg", stroke, *dot, viewBox="0 0 28 12", aria_hidden="true"), name)


WHISKER_WIDTH, WHISKER_HEIGHT = 240, 20


def whisker(
    low: float, value: float, high: float, x_range: tuple[float, float], reference: float | None = None, color: str = "one"
) -> Html:
    """A dot with arms from `low` to `high`; `level` is a dashed line that all rows share. A score that is none is no dot."""
    if math.isnan(value):
        return Html("")
    drawn = []
    if reference is not None:
        drawn.append(
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
        drawn.append(
            element(
                "line",
                x1=_whisker_x(low, x_range),
                x2=_whisker_x(high, x_range),
                y1=WHISKER_HEIGHT / 2,
                y2=WHISKER_HEIGHT / 2,
                class_=f"arm {color}",
            )
        )
    drawn.append(element("circle", cx=_whisker_x(value, x_range), cy=WHISKER_HEIGHT / 2, r=5, class_=f"dot {color}"))
    said = f"{value:.4g}, from {low:.4g} to {high:.4g}" if low < high else f"{value:.4g}"
    return element(
        "svg", *drawn, viewBox=f"0 0 {WHISKER_WIDTH} {WHISKER_HEIGHT}", class_="whisker", role="img", aria_label=said
    )


def compute_axis_range(values: list[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> tuple[float, float]:
    """From a round number below all of them to one above."""
    known = [value for value in values if not math.isnan(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-6)))
    rounded = math.floor(low / step) * step, math.ceil(high / step) * step
    return max(rounded[0], bounds[0]), min(rounded[1], bounds[1]) if rounded[1] > rounded[0] else rounded[0] + step


def _whisker_x(value: float, x_range: tuple[float, float]) -> float:
    low, high = x_range
    return 8 + (min(max(value, low), high) - low) / (high - low or 1) * (WHISKER_WIDTH - 16)
