"""What grows with what, as an SVG file by itself: both axes by powers, so that a straight line is a power and its slope."""

import math
from collections.abc import Sequence

from .charts import TONES, Series, compact
from .html import Html, element

WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 64, 130, 44, 48
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #63676c; } .title { font-size: 15px; font-weight: 600; fill: #1b1c1d; }
.page { fill: #ffffff; } .grid { stroke: #ebecee; } .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.one { stroke: #2a6fd0; } .two { stroke: #d9622b; } .three { stroke: #178a63; } .four { stroke: #8a57c2; }
.five { stroke: #b98a00; } .six { stroke: #c8447c; } .seven { stroke: #2c9aa8; } .eight { stroke: #7a6652; }
""".strip()


def loglog(title: str, series: Sequence[Series], across: str, up: str) -> bytes:
    """One line a series, its name at its end; `across` grows by doubling, `up` by tens."""
    drawn = [one for one in series if one.points]
    if not drawn:
        raise ValueError(f"{title}: nothing was measured")
    xs, ys = ([math.log(point[side]) for one in drawn for point in one.points] for side in (0, 1))
    frame = _Frame((min(xs), max(xs)), (min(ys), max(ys)))
    grid = [shape for part in (_across(frame), _up(frame)) for shape in part]
    lines = [shape for one, tone in zip(drawn, TONES * len(drawn), strict=False) for shape in _line(frame, one, tone)]
    ends = {one.name: frame.y(one.points[-1][1]) for one in drawn}
    names = [
        element("text", one.name, x=frame.x(one.points[-1][0]) + 8, y=y + 4)
        for one, y in zip(drawn, _apart(list(ends.values())), strict=True)
    ]
    words = [
        element("text", title, x=LEFT, y=24, class_="title"),
        element("text", across, x=(LEFT + WIDE - RIGHT) / 2, y=HIGH - 8, text_anchor="middle"),
        element("text", up, x=LEFT - 52, y=TOP - 4),
    ]
    page = element("rect", x=0, y=0, width=WIDE, height=HIGH, class_="page")
    sheet = Html(f"<style>{STYLE}</style>")
    svg = element("svg", sheet, page, *grid, *lines, *names, *words, xmlns="http://www.w3.org/2000/svg",
                  viewBox=f"0 0 {WIDE} {HIGH}", width=WIDE, height=HIGH, role="img", aria_label=title)  # fmt: skip
    return f"{svg}\n".encode()


class _Frame:
    def __init__(self, across: tuple[float, float], up: tuple[float, float]) -> None:
        self.across, self.up = across, up

    def x(self, value: float) -> float:
        return LEFT + _share(value, self.across) * (WIDE - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HIGH - BOTTOM - _share(value, self.up) * (HIGH - TOP - BOTTOM)


def _share(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return (math.log(value) - low) / (high - low) if high > low else 0.5


def _across(frame: _Frame) -> list[Html]:
    first, last = (side / math.log(2) for side in frame.across)
    places = [2.0**power for power in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]
    lines = [element("line", x1=frame.x(p), x2=frame.x(p), y1=TOP, y2=HIGH - BOTTOM, class_="grid") for p in places]
    return lines + [
        element("text", f"{p:,.0f}", x=frame.x(p), y=HIGH - BOTTOM + 18, text_anchor="middle")
        for p in places[:: len(places) // 8 + 1]
    ]


def _up(frame: _Frame) -> list[Html]:
    first, last = (side / math.log(10) for side in frame.up)
    powers = range(math.floor(first), math.ceil(last) + 1)
    places = [step * 10.0**power for power in powers for step in (1, 3)]
    places = [place for place in places if first - 1e-9 <= math.log10(place) <= last + 1e-9]
    lines = [element("line", x1=LEFT, x2=WIDE - RIGHT, y1=frame.y(p), y2=frame.y(p), class_="grid") for p in places]
    return lines + [element("text", compact(p), x=LEFT - 8, y=frame.y(p) + 4, text_anchor="end") for p in places]


def _line(frame: _Frame, series: Series, tone: str) -> list[Html]:
    places = [(frame.x(x), frame.y(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [element("circle", cx=x, cy=y, r=3, class_=tone, fill="#ffffff") for x, y in places]
    return [element("polyline", points=path, class_=f"curve {tone}"), *dots]


def _apart(heights: list[float], least: float = 14.0) -> list[float]:
    """The same heights, moved down where two names would lie upon each other."""
    moved, last = dict[int, float](), -math.inf
    for number in sorted(range(len(heights)), key=heights.__getitem__):
        last = moved[number] = max(heights[number], last + least)
    return [moved[number] for number in range(len(heights))]
