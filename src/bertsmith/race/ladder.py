"""A race as an SVG file by itself: a rung for each member, the best first, with its average score frozen and tuned."""

import math
from collections.abc import Callable

from ..evaluate.suite import AVERAGE
from ..show.page import Html, element
from .table import Race, scientific

WIDE, LEFT, RIGHT, TOP, STEP = 720, 190, 60, 64, 20
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #3a3d40; } .title { font-size: 15px; font-weight: 600; fill: #1b1c1d; }
.page { fill: #ffffff; } .grid { stroke: #ebecee; } .rung { stroke: #c9ccd0; stroke-width: 2; } .soft { fill: #63676c; }
.frozen { fill: #ffffff; stroke: #d9622b; stroke-width: 2; } .tuned { fill: #2a6fd0; } .end { text-anchor: end; }
""".strip()
Rung = tuple[str, dict[str, float]]  # a member, and its average score each way


def ladder(race: Race) -> bytes | None:
    """None where nobody has an average yet."""
    rungs = _rungs(race)
    if not rungs:
        return None
    found = [score for _, scores in rungs for score in scores.values()]
    low, high = 5 * math.floor(min(found) / 5), 5 * math.ceil((max(found) + 0.1) / 5)

    def across(score: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * (score - low) / (high - low)

    bottom = TOP + STEP * len(rungs)
    lines = [shape for score in range(low, high + 1, 5) for shape in _line(across(score), bottom, score)]
    shapes = [shape for number, one in enumerate(rungs) for shape in _drawn(one, TOP + STEP * (number + 0.5), across)]
    title = f"{len(rungs)} rows, {scientific(race.budget)} FLOPs each: average of {', '.join(race.tasks)}"
    page = element("rect", x=0, y=0, width=WIDE, height=bottom + 30, class_="page")
    words = [element("text", title, x=16, y=24, class_="title"), *_legend(race)]
    return element("svg", Html(f"<style>{STYLE}</style>"), page, *lines, *shapes, *words, xmlns="http://www.w3.org/2000/svg",
                   viewBox=f"0 0 {WIDE} {bottom + 30}", width=WIDE, height=bottom + 30, role="img",
                   aria_label=title).encode()  # fmt: skip


def _rungs(race: Race) -> list[Rung]:
    """Those with an average, by the better of their two."""
    rungs = []
    for one in race.entries:
        cells = {way: race.cell(way, one.name, AVERAGE) for way in race.ways}
        scores = {way: 100 * cell.mean for way, cell in cells.items() if cell and not math.isnan(cell.mean)}
        rungs += [(one.name, scores)] if scores else []
    return sorted(rungs, key=lambda rung: -max(rung[1].values()))


def _line(x: float, bottom: float, score: int) -> list[Html]:
    return [
        element("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="grid"),
        element("text", str(score), x=x, y=bottom + 18, text_anchor="middle", class_="soft"),
    ]


def _drawn(rung: Rung, y: float, across: Callable[[float], float]) -> list[Html]:
    name, scores = rung
    places = sorted(across(score) for score in scores.values())
    best = max(scores.values())
    return [
        element("text", name, x=LEFT - 14, y=y + 4, class_="end"),
        element("line", x1=places[0], x2=places[-1], y1=y, y2=y, class_="rung"),
        *(element("circle", cx=across(score), cy=y, r=5, class_=way) for way, score in scores.items()),
        element("text", f"{best:.1f}", x=places[-1] + 10, y=y + 4, class_="soft"),
    ]


def _legend(race: Race) -> list[Html]:
    shapes = []
    for number, way in enumerate(race.ways):
        shapes += [element("circle", cx=LEFT + 90 * number + 6, cy=44, r=5, class_=way),
                   element("text", way, x=LEFT + 90 * number + 18, y=48)]  # fmt: skip
    return shapes
