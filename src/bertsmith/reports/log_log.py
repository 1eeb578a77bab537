"""Log-log line chart as a standalone SVG file: a power law y = a x^k is a straight line of gradient k."""

import math
from collections.abc import Sequence

from .charts import COLORS, Series, format_compact
from .html import Html, element

WIDTH, HEIGHT, LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 640, 400, 64, 130, 44, 48
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #63676c; } .title { font-size: 15px; font-weight: 600; fill: #1b1c1d; }
.page { fill: #ffffff; } .grid { stroke: #ebecee; } .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.one { stroke: #2a6fd0; } .two { stroke: #d9622b; } .three { stroke: #178a63; } .four { stroke: #8a57c2; }
.five { stroke: #b98a00; } .six { stroke: #c8447c; } .seven { stroke: #2c9aa8; } .eight { stroke: #7a6652; }
""".strip()


def loglog_chart(title: str, series: Sequence[Series], x_label: str, y_label: str) -> bytes:
    """One line per series with its name at the end; x ticks at powers of 2, y ticks at 1 and 3 times powers of 10."""
    non_empty = [line for line in series if line.points]
    if not non_empty:
        raise ValueError(f"{title}: nothing was measured")
    xs, ys = ([math.log(point[axis]) for line in non_empty for point in line.points] for axis in (0, 1))
    axes = _LogAxes((min(xs), max(xs)), (min(ys), max(ys)))
    grid = [shape for grid_part in (_draw_x_grid(axes), _draw_y_grid(axes)) for shape in grid_part]
    curves = [
        shape
        for line, color in zip(non_empty, COLORS * len(non_empty), strict=False)
        for shape in _draw_series(axes, line, color)
    ]
    y_ends = {line.name: axes.y(line.points[-1][1]) for line in non_empty}
    labels = [
        element("text", line.name, x=axes.x(line.points[-1][0]) + 8, y=y + 4)
        for line, y in zip(non_empty, _spread_labels(list(y_ends.values())), strict=True)
    ]
    captions = [
        element("text", title, x=LEFT_MARGIN, y=24, class_="title"),
        element("text", x_label, x=(LEFT_MARGIN + WIDTH - RIGHT_MARGIN) / 2, y=HEIGHT - 8, text_anchor="middle"),
        element("text", y_label, x=LEFT_MARGIN - 52, y=TOP_MARGIN - 4),
    ]
    background = element("rect", x=0, y=0, width=WIDTH, height=HEIGHT, class_="page")
    style = Html(f"<style>{STYLE}</style>")
    svg = element("svg", style, background, *grid, *curves, *labels, *captions, xmlns="http://www.w3.org/2000/svg",
                  viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT, role="img", aria_label=title)  # fmt: skip
    return f"{svg}\n".encode()


class _LogAxes:
    """Maps values to SVG coordinates; ranges are (min, max) of natural logarithms."""

    def __init__(self, x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
        self.x_range, self.y_range = x_range, y_range

    def x(self, value: float) -> float:
        return LEFT_MARGIN + _log_fraction(value, self.x_range) * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM_MARGIN - _log_fraction(value, self.y_range) * (HEIGHT - TOP_MARGIN - BOTTOM_MARGIN)


def _log_fraction(value: float, log_range: tuple[float, float]) -> float:
    low, high = log_range
    return (math.log(value) - low) / (high - low) if high > low else 0.5


def _draw_x_grid(axes: _LogAxes) -> list[Html]:
    first, last = (edge / math.log(2) for edge in axes.x_range)
    ticks = [2.0**power for power in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]
    lines = [
        element("line", x1=axes.x(tick), x2=axes.x(tick), y1=TOP_MARGIN, y2=HEIGHT - BOTTOM_MARGIN, class_="grid")
        for tick in ticks
    ]
    return lines + [
        element("text", f"{tick:,.0f}", x=axes.x(tick), y=HEIGHT - BOTTOM_MARGIN + 18, text_anchor="middle")
        for tick in ticks[:: len(ticks) // 8 + 1]
    ]


def _draw_y_grid(axes: _LogAxes) -> list[Html]:
    first, last = (edge / math.log(10) for edge in axes.y_range)
    powers = range(math.floor(first), math.ceil(last) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 3)]
    ticks = [value for value in ticks if first - 1e-9 <= math.log10(value) <= last + 1e-9]
    lines = [
        element("line", x1=LEFT_MARGIN, x2=WIDTH - RIGHT_MARGIN, y1=axes.y(tick), y2=axes.y(tick), class_="grid")
        for tick in ticks
    ]
    return lines + [
        element("text", format_compact(tick), x=LEFT_MARGIN - 8, y=axes.y(tick) + 4, text_anchor="end") for tick in ticks
    ]


def _draw_series(axes: _LogAxes, series: Series, color: str) -> list[Html]:
    pixels = [(axes.x(x), axes.y(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    dots = [element("circle", cx=x, cy=y, r=3, class_=color, fill="#ffffff") for x, y in pixels]
    return [element("polyline", points=path, class_=f"curve {color}"), *dots]


def _spread_labels(heights: list[float], min_distance: float = 14.0) -> list[float]:
    """The same y coordinates, moved down where labels would overlap."""
    moved, last = dict[int, float](), -math.inf
    for i in sorted(range(len(heights)), key=heights.__getitem__):
        last = moved[i] = max(heights[i], last + min_distance)
    return [moved[i] for i in range(len(heights))]
