"""What grows with what, as an SVG file by itself: both axes by powers, so that a straight line is a power and its slope."""

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
    """One line a series, its name at its end; `across` grows by doubling, `up` by tens."""
    drawn = [one for one in series if one.points]
    if not drawn:
        raise ValueError(f"{title}: nothing was measured")
    xs, ys = ([math.log(point[side]) for one in drawn for point in one.points] for side in (0, 1))
    frame = _LogAxes((min(xs), max(xs)), (min(ys), max(ys)))
    grid = [shape for part in (_draw_x_grid(frame), _draw_y_grid(frame)) for shape in part]
    lines = [shape for one, tone in zip(drawn, COLORS * len(drawn), strict=False) for shape in _draw_series(frame, one, tone)]
    ends = {one.name: frame.y(one.points[-1][1]) for one in drawn}
    names = [
        element("text", one.name, x=frame.x(one.points[-1][0]) + 8, y=y + 4)
        for one, y in zip(drawn, _spread_labels(list(ends.values())), strict=True)
    ]
    words = [
        element("text", title, x=LEFT_MARGIN, y=24, class_="title"),
        element("text", x_label, x=(LEFT_MARGIN + WIDTH - RIGHT_MARGIN) / 2, y=HEIGHT - 8, text_anchor="middle"),
        element("text", y_label, x=LEFT_MARGIN - 52, y=TOP_MARGIN - 4),
    ]
    page = element("rect", x=0, y=0, width=WIDTH, height=HEIGHT, class_="page")
    sheet = Html(f"<style>{STYLE}</style>")
    svg = element("svg", sheet, page, *grid, *lines, *names, *words, xmlns="http://www.w3.org/2000/svg",
                  viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT, role="img", aria_label=title)  # fmt: skip
    return f"{svg}\n".encode()


class _LogAxes:
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
    first, last = (side / math.log(2) for side in axes.x_range)
    places = [2.0**power for power in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]
    lines = [
        element("line", x1=axes.x(p), x2=axes.x(p), y1=TOP_MARGIN, y2=HEIGHT - BOTTOM_MARGIN, class_="grid") for p in places
    ]
    return lines + [
        element("text", f"{p:,.0f}", x=axes.x(p), y=HEIGHT - BOTTOM_MARGIN + 18, text_anchor="middle")
        for p in places[:: len(places) // 8 + 1]
    ]


def _draw_y_grid(axes: _LogAxes) -> list[Html]:
    first, last = (side / math.log(10) for side in axes.y_range)
    powers = range(math.floor(first), math.ceil(last) + 1)
    places = [step * 10.0**power for power in powers for step in (1, 3)]
    places = [place for place in places if first - 1e-9 <= math.log10(place) <= last + 1e-9]
    lines = [
        element("line", x1=LEFT_MARGIN, x2=WIDTH - RIGHT_MARGIN, y1=axes.y(p), y2=axes.y(p), class_="grid") for p in places
    ]
    return lines + [element("text", format_compact(p), x=LEFT_MARGIN - 8, y=axes.y(p) + 4, text_anchor="end") for p in places]


def _draw_series(axes: _LogAxes, series: Series, color: str) -> list[Html]:
    places = [(axes.x(x), axes.y(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [element("circle", cx=x, cy=y, r=3, class_=color, fill="#ffffff") for x, y in places]
    return [element("polyline", points=path, class_=f"curve {color}"), *dots]


def _spread_labels(heights: list[float], min_distance: float = 14.0) -> list[float]:
    """The same heights, moved down where two names would lie upon each other."""
    moved, last = dict[int, float](), -math.inf
    for number in sorted(range(len(heights)), key=heights.__getitem__):
        last = moved[number] = max(heights[number], last + min_distance)
    return [moved[number] for number in range(len(heights))]
