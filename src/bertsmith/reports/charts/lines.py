"""Line charts and bar charts for pages, and log-log charts as SVG files."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from markupsafe import Markup

from .axes import (
    COLORS,
    FULL_WIDTH,
    HALF_WIDTH,
    HEIGHT,
    Axes,
    Frame,
    compute_ticks,
    format_compact,
    log_ticks,
    tag,
)
from .chart import Chart, LegendEntry, empty_chart, svg_file

MAX_POINTS = 500  # points of a line: more than a screen can resolve
LOGLOG_FRAME = Frame(width=640, height=400, left=64, right=130, top=44, bottom=48)
LABEL_DISTANCE = 14.0  # between the baselines of two labels, in pixels
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


def downsample(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """At most `max_points` points, each the mean of consecutive points where there are more."""
    if len(points) <= max_points:
        return list(points)
    edges = [len(points) * i // max_points for i in range(max_points + 1)]
    groups = (points[a:b] for a, b in pairwise(edges))
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    reference: tuple[str, float] | None = None,
    include_zero: bool = False,
    width: int = FULL_WIDTH,
) -> Chart:
    """A chart; `reference` is a named dashed horizontal line, `include_zero` extends the y axis to 0."""
    sampled = [Series(s.name, downsample(s.points), s.style) for s in series]
    points = [point for s in sampled for point in s.points]
    if not points:
        return empty_chart(title, "No data yet.", width)
    x_range = min(x for x, _ in points), max(x for x, _ in points)
    y_values = [y for _, y in points] + ([reference[1]] if reference else []) + ([0.0] if include_zero else [])
    y_ticks = compute_ticks(min(y_values), max(y_values))
    axes = Axes(x_range, (y_ticks[0], y_ticks[-1]), Frame(width))
    x_ticks = [x for x in compute_ticks(*x_range) if x_range[0] <= x <= x_range[1]] if x_range[0] < x_range[1] else x_range[:1]
    shapes = [
        *axes.draw_y_grid(y_ticks),
        axes.horizontal_line(y_ticks[0], "axis"),
        *axes.draw_x_labels([(x, format_compact(x)) for x in x_ticks], x_label),
        *([axes.horizontal_line(reference[1], "level")] if reference else []),
    ]
    legend = []
    for s, color in zip(sampled, COLORS, strict=False):
        shapes += _draw_series(axes, s, color, x_label)
        legend += [LegendEntry(s.name, f"curve {color}", f"dot {color}" if s.style == "dots" else None)] if s.points else []
    if reference:
        legend.append(LegendEntry(reference[0], "level"))
    return Chart(title, shapes, width, HEIGHT, legend=legend if len(legend) > 1 else ())


def bar_chart(title: str, counts: Mapping[str, int], x_label: str, width: int = HALF_WIDTH) -> Chart:
    """One bar per name with its count above it."""
    if not counts:
        return empty_chart(title, "No data.", width)
    y_ticks = compute_ticks(0, max(counts.values()))
    axes = Axes((-0.5, len(counts) - 0.5), (y_ticks[0], y_ticks[-1]), Frame(width))
    bars = []
    for index, (name, count) in enumerate(counts.items()):
        left, right, y = axes.x(index - 0.38), axes.x(index + 0.38), axes.y(count)
        bars += [
            tag("rect", tag("title", f"{name}: {count:,}"), class_="bar", x=left, y=y, width=right - left,
                height=axes.y(0) - y, rx=3),
            tag("text", format_compact(count), x=axes.x(index), y=y - 5, text_anchor="middle", class_="value"),
        ]  # fmt: skip
    labels = axes.draw_x_labels(enumerate(counts), x_label)
    shapes = [*axes.draw_y_grid(y_ticks), axes.horizontal_line(0, "axis"), *labels, *bars]
    return Chart(title, shapes, width, HEIGHT, top=12)


def loglog_chart(title: str, series: Sequence[Series], x_label: str, y_label: str) -> bytes:
    """An SVG file: a power law y = a x^k is a straight line of gradient k; every line has its name at its end.

    x ticks at powers of 2, y ticks at 1 and 3 times powers of 10.
    """
    lines = [line for line in series if line.points]
    if not lines:
        raise ValueError(f"{title}: no data")
    xs, ys = ([point[axis] for line in lines for point in line.points] for axis in (0, 1))
    frame = LOGLOG_FRAME
    axes = Axes((min(xs), max(xs)), (min(ys), max(ys)), frame, x_log=True, y_log=True)
    powers = range(math.ceil(math.log2(min(xs)) - 1e-9), math.floor(math.log2(max(xs)) + 1e-9) + 1)
    x_ticks = [2.0**power for power in powers]
    x_labels = [(tick, f"{tick:,.0f}") for tick in x_ticks[:: len(x_ticks) // 8 + 1]]
    shapes = [
        tag("text", title, x=frame.left, y=24, class_="title"),
        tag("text", y_label, x=frame.left - 52, y=frame.top - 4),
        *(axes.vertical_line(tick, "grid") for tick in x_ticks),
        *axes.draw_y_grid(log_ticks(min(ys), max(ys), (1, 3))),
        *axes.draw_x_labels(x_labels, x_label),
    ]
    label_heights = _spread_labels([axes.y(line.points[-1][1]) for line in lines])
    for index, (line, height) in enumerate(zip(lines, label_heights, strict=True)):
        color, pixels = COLORS[index % len(COLORS)], [(axes.x(x), axes.y(y)) for x, y in line.points]
        shapes.append(tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in pixels), class_=f"curve {color}"))
        shapes += [tag("circle", cx=x, cy=y, r=3, class_=f"{color} hollow") for x, y in pixels]
        shapes.append(tag("text", line.name, x=pixels[-1][0] + 8, y=height + 4))
    return svg_file(title, shapes, frame.width, frame.height)


def _draw_series(axes: Axes, series: Series, color: str, x_label: str) -> list[Markup]:
    pixels = [(axes.x(x), axes.y(y)) for x, y in series.points]
    shapes = []
    if len(pixels) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
        opacity = 0.45 if series.style == "dots" else None
        shapes.append(tag("polyline", points=path, class_=f"curve {color}", stroke_opacity=opacity))
    if series.style == "dots" or len(pixels) == 1:
        for (x, y), (step, value) in zip(pixels, series.points, strict=True):
            tooltip = tag("title", f"{series.name}: {value:.4g} at {x_label} {step:,.8g}")
            shapes.append(tag("circle", tooltip, cx=x, cy=y, r=4, class_=f"dot {color}"))
    return shapes


def _spread_labels(heights: list[float]) -> list[float]:
    """The same y coordinates, moved down where labels would overlap."""
    moved, last = dict[int, float](), -math.inf
    for i in sorted(range(len(heights)), key=heights.__getitem__):
        last = moved[i] = max(heights[i], last + LABEL_DISTANCE)
    return [moved[i] for i in range(len(heights))]
