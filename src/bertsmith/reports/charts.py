"""Charts as inline SVG: lines against steps, and bars; colours come from the page's sheet."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from .html import Html, element

TONES = ("one", "two", "three", "four", "five", "six", "seven", "eight")
WIDE, HALF, HIGH = 900, 430, 280  # two of half the width stand side by side
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 10, 42
MOST = 500  # points of a line: more than a screen can show apart

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Named points in order of x; dots stand for single measurements, a line for something that goes on."""

    name: str
    points: Sequence[Point]
    style: Literal["line", "dots"] = "line"


def points(rows: Iterable[Mapping[str, Any]], name: str) -> list[Point]:
    """(step, value) of the rows that have the value; what is no number, or no finite one, is left out."""
    pairs = ((row["step"], row.get(name)) for row in rows)
    return [(x, float(y)) for x, y in pairs if isinstance(y, int | float) and not isinstance(y, bool) and math.isfinite(y)]


def lines(
    title: str,
    series: Sequence[Series],
    across: str,
    level: tuple[str, float] | None = None,
    zero: bool = False,
    wide: int = WIDE,
) -> Html:
    """One figure; `level` is a dashed line with a name, `zero` makes the upright axis begin at 0."""
    drawn = [Series(s.name, thinned(s.points), s.style) for s in series]
    every = [point for s in drawn for point in s.points]
    if not every:
        return element("figure", element("figcaption", title), element("p", "Nothing was measured yet.", class_="note"))
    heights = [y for _, y in every] + ([level[1]] if level else []) + ([0.0] if zero else [])
    frame = Frame((min(x for x, _ in every), max(x for x, _ in every)), ticks(min(heights), max(heights)), wide)
    tones = dict(zip((s.name for s in drawn), TONES, strict=False))
    shapes = [shape for s in drawn for shape in _series(frame, s, tones[s.name], across)]
    legend = [(s.name, tones[s.name], s.style) for s in drawn if s.points] + ([(level[0], "level", "level")] if level else [])
    dashed = [frame.straight(level[1], "level")] if level else []
    svg = element("svg", *frame.grid(across), *dashed, *shapes, viewBox=f"0 0 {wide} {HIGH}", role="img", aria_label=title)
    shown = element("div", *(_entry(*entry) for entry in legend), class_="legend") if len(legend) > 1 else Html("")
    return element("figure", element("figcaption", title), shown, svg)


def bars(title: str, counts: Mapping[str, int], across: str, wide: int = HALF) -> Html:
    """One bar a name, its count above it."""
    if not counts:
        return element("figure", element("figcaption", title), element("p", "Nothing was counted.", class_="note"))
    step = (wide - LEFT - RIGHT) / len(counts)
    frame = Frame((0, 1), ticks(0, max(counts.values())), wide)
    shapes = []
    for number, (name, count) in enumerate(counts.items()):
        x, y, middle = LEFT + number * step, frame.y(count), LEFT + (number + 0.5) * step
        bar = element("rect", element("title", f"{name}: {count:,}"), class_="bar", x=x + step * 0.12, y=y,
                      width=step * 0.76, height=frame.y(0) - y, rx=3)  # fmt: skip
        shapes += [bar, element("text", compact(count), x=middle, y=y - 5, text_anchor="middle", class_="value"),
                   element("text", name, x=middle, y=HIGH - BOTTOM + 17, text_anchor="middle")]  # fmt: skip
    grid = frame.grid(across, upright=False)
    svg = element("svg", *grid, *shapes, viewBox=f"0 -12 {wide} {HIGH + 12}", role="img", aria_label=title)
    return element("figure", element("figcaption", title), svg)


@dataclass(frozen=True)
class Frame:
    """Where values lie on the drawing: across it ends with the data, upright with a tick."""

    across: tuple[float, float]
    up: Sequence[float]
    wide: int = WIDE

    def x(self, value: float) -> float:
        low, high = self.across
        return LEFT + ((value - low) / (high - low) if high > low else 0.5) * (self.wide - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HIGH - BOTTOM - (value - self.up[0]) / (self.up[-1] - self.up[0]) * (HIGH - TOP - BOTTOM)

    def grid(self, across: str, upright: bool = True) -> list[Html]:
        """Faint lines at the ticks, their numbers, and what is counted across."""
        made: list[Html] = []
        for value in self.up:
            number = element("text", compact(value), x=LEFT - 8, y=self.y(value) + 4, text_anchor="end")
            made += [self.straight(value, "grid"), number]
        if upright:
            made += [element("text", compact(v), x=self.x(v), y=HIGH - BOTTOM + 17, text_anchor="middle") for v in self.steps()]
        name = element("text", across, x=(LEFT + self.wide - RIGHT) / 2, y=HIGH - 4, text_anchor="middle")
        return [*made, self.straight(self.up[0], "axis"), name]

    def steps(self) -> list[float]:
        """The ticks across that lie within; a lone point is its own tick."""
        low, high = self.across
        return [value for value in ticks(low, high) if low <= value <= high] if high > low else [low]

    def straight(self, value: float, kind: str) -> Html:
        """A line across at this height."""
        return element("line", x1=LEFT, x2=self.wide - RIGHT, y1=self.y(value), y2=self.y(value), class_=kind)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, evenly spaced, from at most `low` to at least `high`; two at least, also where both are one number."""
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-290):
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if abs(low) > 1e-280 else (min(low, 0.0), 1.0)
    size = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(size * times for times in (1, 2, 2.5, 5, 10) if (high - low) / (size * times) <= about)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def thinned(given: Sequence[Point], most: int = MOST) -> list[Point]:
    """At most so many points: where there are more, each is the mean of its neighbours."""
    if len(given) <= most:
        return list(given)
    edges = [len(given) * i // most for i in range(most + 1)]
    groups = (given[a:b] for a, b in pairwise(edges))
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def compact(value: float) -> str:
    """12,300 as 12.3k: what fits beside an axis."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2g}"


def _series(frame: Frame, series: Series, tone: str, across: str) -> list[Html]:
    places = [(frame.x(x), frame.y(y)) for x, y in series.points]
    made = []
    if len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        faint = 0.45 if series.style == "dots" else None
        made.append(element("polyline", points=path, class_=f"curve {tone}", stroke_opacity=faint))
    if series.style == "dots" or len(places) == 1:
        for (x, y), (step, value) in zip(places, series.points, strict=True):
            told = element("title", f"{series.name}: {value:.4g} at {across} {step:,.8g}")
            made.append(element("circle", told, cx=x, cy=y, r=4, class_=f"dot {tone}"))
    return made


def _entry(name: str, tone: str, style: str) -> Html:
    stroke = element("line", x1=0, x2=28, y1=6, y2=6, class_=tone if style == "level" else f"curve {tone}")
    dot = [element("circle", cx=14, cy=6, r=4, class_=f"dot {tone}")] if style == "dots" else []
    return element("span", element("svg", stroke, *dot, viewBox="0 0 28 12", aria_hidden="true"), name)


WHISKER_WIDE, WHISKER_HIGH = 240, 20


def whisker(
    low: float, value: float, high: float, scale: tuple[float, float], level: float | None = None, tone: str = "one"
) -> Html:
    """A dot with arms from `low` to `high`; `level` is a dashed line that all rows share. A score that is none is no dot."""
    if math.isnan(value):
        return Html("")
    drawn = []
    if level is not None:
        drawn.append(element("line", x1=_x(level, scale), x2=_x(level, scale), y1=0, y2=WHISKER_HIGH, class_="level"))
    if low < high:
        drawn.append(
            element(
                "line", x1=_x(low, scale), x2=_x(high, scale), y1=WHISKER_HIGH / 2, y2=WHISKER_HIGH / 2, class_=f"arm {tone}"
            )
        )
    drawn.append(element("circle", cx=_x(value, scale), cy=WHISKER_HIGH / 2, r=5, class_=f"dot {tone}"))
    said = f"{value:.4g}, from {low:.4g} to {high:.4g}" if low < high else f"{value:.4g}"
    return element("svg", *drawn, viewBox=f"0 0 {WHISKER_WIDE} {WHISKER_HIGH}", class_="whisker", role="img", aria_label=said)


def scale(values: list[float], within: tuple[float, float] = (-math.inf, math.inf)) -> tuple[float, float]:
    """From a round number below all of them to one above."""
    known = [value for value in values if not math.isnan(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-6)))
    rounded = math.floor(low / step) * step, math.ceil(high / step) * step
    return max(rounded[0], within[0]), min(rounded[1], within[1]) if rounded[1] > rounded[0] else rounded[0] + step


def _x(value: float, scale: tuple[float, float]) -> float:
    low, high = scale
    return 8 + (min(max(value, low), high) - low) / (high - low or 1) * (WHISKER_WIDE - 16)
