"""A cloud of points in a square: each says what it is when it is pointed at, and shows which others are nearest to it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .charts import BOTTOM, HALF, HIGH, LEFT, RIGHT, TONES, Frame, compact, ticks
from .html import Html, element

SIDE, EDGE = 300, 14
SAME = 1e-6  # of the spread: points nearer than this are one


@dataclass(frozen=True)
class Mark:
    """How a point is drawn, and what it says."""

    tone: str
    said: str
    near: tuple[int, ...] = ()  # the numbers of its neighbours, the nearest first


def flattened(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """(points, 2): along the two directions in which they lie furthest apart (principal components).

    Signs are fixed, so that a page is the same each time; points that are all one stay at (0, 0).
    """
    middle = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    if not len(middle) or np.abs(middle).max(initial=0) <= SAME * max(1.0, float(np.abs(vectors).max(initial=0))):
        return np.zeros((len(middle), 2))
    left, sizes, right = np.linalg.svd(middle, full_matrices=False)
    count = min(2, len(sizes))
    signs = np.sign(right[np.arange(count), np.abs(right[:count]).argmax(1)])
    flat = np.zeros((len(middle), 2))
    flat[:, :count] = left[:, :count] * sizes[:count] * signs
    return flat


def cloud(title: str, words: str, places: NDArray[np.float64], marks: Sequence[Mark]) -> Html:
    """One figure; `words` stand small beside the title. Where all points are one, it says how many they are."""
    spots = _within(places)
    square = element("rect", x=0.5, y=0.5, width=SIDE - 1, height=SIDE - 1, rx=8, class_="panel")
    drawn = [_point(number, spots, mark) for number, mark in enumerate(marks)]
    if len(marks) > 1 and not np.ptp(spots, axis=0).any():
        middle = element("text", f"all {len(marks)} are one point", x=SIDE / 2, y=SIDE / 2 + 26, text_anchor="middle")
        drawn.append(middle)
    svg = element("svg", square, *drawn, viewBox=f"0 0 {SIDE} {SIDE}", role="img", aria_label=title)
    return element("figure", element("figcaption", title, element("small", words)), svg)


def _within(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """On the square, both ways to one scale; a far-off few are put on its edge rather than squeeze the rest."""
    if not len(places):
        return places
    low, high = np.quantile(places, 0.01, axis=0), np.quantile(places, 0.99, axis=0)
    span = float((high - low).max()) or 1.0
    shares = np.clip((places - (low + high) / 2) / span + 0.5, -0.02, 1.02)
    return EDGE + shares * (SIDE - 2 * EDGE)


def _point(number: int, spots: NDArray[np.float64], mark: Mark) -> Html:
    x, y = spots[number]
    links = [element("line", x1=x, y1=y, x2=spots[n][0], y2=spots[n][1], class_=f"link {mark.tone}") for n in mark.near]
    dot = element("circle", element("title", mark.said), cx=x, cy=y, r=4.2, class_=f"dot {mark.tone}")
    return element("g", *links, dot, class_="point")


LINE = 13  # height of a name
LETTER = 6.9  # width of one, about


class Dot(NamedTuple):
    name: str
    x: float  # above 0
    y: float
    tone: str = TONES[0]
    apart: float = 0.0  # how far it may be off, up and down


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "_Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def dots(title: str, given: Sequence[Dot], across: str, level: tuple[str, float] | None = None, wide: int = HALF * 2) -> Html:
    """One figure; `level` is a dashed line with a name. Names stand beside their dots, moved where they would overlap."""
    if not given:
        return element("figure", element("figcaption", title), element("p", "Nothing was measured yet.", class_="note"))
    logs = [math.log10(one.x) for one in given]
    pad = 0.08 * (max(logs) - min(logs)) or 0.5
    edges = [edge for one in given for edge in (one.y - one.apart, one.y + one.apart)] + ([level[1]] if level else [])
    frame = Frame((min(logs) - pad, max(logs) + pad), ticks(min(edges), max(edges)), wide)
    places = [(one, frame.x(math.log10(one.x)), frame.y(one.y)) for one in sorted(given, key=lambda one: -one.y)]
    taken = [_Box(x - 6, y - 6, x + 6, y + 6) for _, x, y in places]
    shapes = [shape for one, x, y in places for shape in (*_arm(frame, one, x), _dot(one, x, y, across))]
    for one, x, y in places:
        taken.append(_placed(one.name, x, y, taken, wide))
        shapes.append(element("text", one.name, x=taken[-1].left, y=taken[-1].bottom - 3, class_="value"))
    dashed = [frame.straight(level[1], "level"), _beside(level[0], frame.y(level[1]))] if level else []
    svg = element("svg", *_grid(frame, across), *dashed, *shapes, viewBox=f"0 0 {wide} {HIGH}", role="img", aria_label=title)
    return element("figure", element("figcaption", title), svg)


def _grid(frame: Frame, across: str) -> list[Html]:
    """Lines at round heights, and 1, 2 and 5 of each power of ten across, as far apart as numbers can be read."""
    low, high = frame.across
    marks = [times * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for times in (1, 2, 5)]
    marks = [mark for mark in marks if low <= math.log10(mark) <= high]
    marks = [mark for mark in marks if len(marks) <= 9 or round(math.log10(mark), 6) == round(math.log10(mark))]
    named = [element("text", compact(mark), x=frame.x(math.log10(mark)), y=HIGH - BOTTOM + 17, text_anchor="middle")
             for mark in marks]  # fmt: skip
    return [*frame.grid(across, upright=False), *named]


def _placed(name: str, x: float, y: float, taken: Sequence[_Box], wide: int) -> _Box:
    """Right of the dot, or left of it; lower and lower until it stands free, and over others if it never does."""
    size = LETTER * len(name)
    sides = [left for left in (x + 8, x - 8 - size) if left >= LEFT and left + size <= wide - RIGHT] or [x - 8 - size]
    for down, left in product(range(0, HIGH, 2), sides):
        box = _Box(left, y - LINE / 2 + down, left + size, y + LINE / 2 + down)
        if not any(map(box.meets, taken)) and box.bottom <= HIGH - BOTTOM:
            return box
    return _Box(sides[0], y - LINE / 2, sides[0] + size, y + LINE / 2)


def _arm(frame: Frame, one: Dot, x: float) -> list[Html]:
    if not one.apart:
        return []
    return [element("line", x1=x, x2=x, y1=frame.y(one.y - one.apart), y2=frame.y(one.y + one.apart), class_=f"arm {one.tone}")]


def _dot(one: Dot, x: float, y: float, across: str) -> Html:
    off = f" ± {one.apart:.2g}" if one.apart else ""
    told = element("title", f"{one.name}: {one.y:.4g}{off} at {compact(one.x)} {across}")
    return element("circle", told, cx=x, cy=y, r=5, class_=f"dot {one.tone}")


def _beside(name: str, y: float) -> Html:
    return element("text", name, x=LEFT + 4, y=y - 5, text_anchor="start")
