"""A cloud of points in a square: each says what it is when it is pointed at, and shows which others are nearest to it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .charts import BOTTOM_MARGIN, COLORS, HALF_WIDTH, HEIGHT, LEFT_MARGIN, RIGHT_MARGIN, Axes, compute_ticks, format_compact
from .html import Html, element

PANEL_SIZE, PANEL_MARGIN = 300, 14
POINT_TOLERANCE = 1e-6  # of the spread: points nearer than this are one


@dataclass(frozen=True)
class Marker:
    """How a point is drawn, and what it says."""

    color: str
    tooltip: str
    neighbors: tuple[int, ...] = ()  # the numbers of its neighbours, the nearest first


def project_pca(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """(points, 2): along the two directions in which they lie furthest apart (principal components).

    Signs are fixed, so that a page is the same each time; points that are all one stay at (0, 0).
    """
    middle = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    if not len(middle) or np.abs(middle).max(initial=0) <= POINT_TOLERANCE * max(1.0, float(np.abs(vectors).max(initial=0))):
        return np.zeros((len(middle), 2))
    left, sizes, right = np.linalg.svd(middle, full_matrices=False)
    count = min(2, len(sizes))
    signs = np.sign(right[np.arange(count), np.abs(right[:count]).argmax(1)])
    flat = np.zeros((len(middle), 2))
    flat[:, :count] = left[:, :count] * sizes[:count] * signs
    return flat


def scatter_panel(title: str, subtitle: str, positions: NDArray[np.float64], markers: Sequence[Marker]) -> Html:
    """One figure; `words` stand small beside the title. Where all points are one, it says how many they are."""
    spots = _fit_to_panel(positions)
    square = element("rect", x=0.5, y=0.5, width=PANEL_SIZE - 1, height=PANEL_SIZE - 1, rx=8, class_="panel")
    drawn = [_draw_panel_point(number, spots, mark) for number, mark in enumerate(markers)]
    if len(markers) > 1 and not np.ptp(spots, axis=0).any():
        middle = element(
            "text", f"all {len(markers)} are one point", x=PANEL_SIZE / 2, y=PANEL_SIZE / 2 + 26, text_anchor="middle"
        )
        drawn.append(middle)
    svg = element("svg", square, *drawn, viewBox=f"0 0 {PANEL_SIZE} {PANEL_SIZE}", role="img", aria_label=title)
    return element("figure", element("figcaption", title, element("small", subtitle)), svg)


def _fit_to_panel(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """On the square, both ways to one scale; a far-off few are put on its edge rather than squeeze the rest."""
    if not len(positions):
        return positions
    low, high = np.quantile(positions, 0.01, axis=0), np.quantile(positions, 0.99, axis=0)
    span = float((high - low).max()) or 1.0
    shares = np.clip((positions - (low + high) / 2) / span + 0.5, -0.02, 1.02)
    return PANEL_MARGIN + shares * (PANEL_SIZE - 2 * PANEL_MARGIN)


def _draw_panel_point(index: int, positions: NDArray[np.float64], marker: Marker) -> Html:
    x, y = positions[index]
    links = [
        element("line", x1=x, y1=y, x2=positions[n][0], y2=positions[n][1], class_=f"link {marker.color}")
        for n in marker.neighbors
    ]
    dot = element("circle", element("title", marker.tooltip), cx=x, cy=y, r=4.2, class_=f"dot {marker.color}")
    return element("g", *links, dot, class_="point")


LABEL_HEIGHT = 13  # height of a name
CHAR_WIDTH = 6.9  # width of one, about


class LabeledPoint(NamedTuple):
    name: str
    x: float  # above 0
    y: float
    color: str = COLORS[0]
    y_error: float = 0.0  # how far it may be off, up and down


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "_Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def scatter_chart(
    title: str,
    points: Sequence[LabeledPoint],
    x_label: str,
    reference: tuple[str, float] | None = None,
    width: int = HALF_WIDTH * 2,
) -> Html:
    """One figure; `level` is a dashed line with a name. Names stand beside their dots, moved where they would overlap."""
    if not points:
        return element("figure", element("figcaption", title), element("p", "Nothing was measured yet.", class_="note"))
    logs = [math.log10(one.x) for one in points]
    pad = 0.08 * (max(logs) - min(logs)) or 0.5
    edges = [edge for one in points for edge in (one.y - one.y_error, one.y + one.y_error)] + (
        [reference[1]] if reference else []
    )
    frame = Axes((min(logs) - pad, max(logs) + pad), compute_ticks(min(edges), max(edges)), width)
    places = [(one, frame.x(math.log10(one.x)), frame.y(one.y)) for one in sorted(points, key=lambda one: -one.y)]
    taken = [_Box(x - 6, y - 6, x + 6, y + 6) for _, x, y in places]
    shapes = [shape for one, x, y in places for shape in (*_draw_error_bar(frame, one, x), _draw_dot(one, x, y, x_label))]
    for one, x, y in places:
        taken.append(_place_label(one.name, x, y, taken, width))
        shapes.append(element("text", one.name, x=taken[-1].left, y=taken[-1].bottom - 3, class_="value"))
    dashed = (
        [frame.horizontal_line(reference[1], "level"), _reference_label(reference[0], frame.y(reference[1]))]
        if reference
        else []
    )
    svg = element(
        "svg", *_draw_grid(frame, x_label), *dashed, *shapes, viewBox=f"0 0 {width} {HEIGHT}", role="img", aria_label=title
    )
    return element("figure", element("figcaption", title), svg)


def _draw_grid(axes: Axes, x_label: str) -> list[Html]:
    """Lines at round heights, and 1, 2 and 5 of each power of ten across, as far apart as numbers can be read."""
    low, high = axes.x_range
    marks = [times * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for times in (1, 2, 5)]
    marks = [mark for mark in marks if low <= math.log10(mark) <= high]
    marks = [mark for mark in marks if len(marks) <= 9 or round(math.log10(mark), 6) == round(math.log10(mark))]
    named = [element("text", format_compact(mark), x=axes.x(math.log10(mark)), y=HEIGHT - BOTTOM_MARGIN + 17, text_anchor="middle")
             for mark in marks]  # fmt: skip
    return [*axes.draw_grid(x_label, label_x_ticks=False), *named]


def _place_label(name: str, x: float, y: float, occupied: Sequence[_Box], width: int) -> _Box:
    """Right of the dot, or left of it; lower and lower until it stands free, and over others if it never does."""
    size = CHAR_WIDTH * len(name)
    sides = [left for left in (x + 8, x - 8 - size) if left >= LEFT_MARGIN and left + size <= width - RIGHT_MARGIN] or [
        x - 8 - size
    ]
    for down, left in product(range(0, HEIGHT, 2), sides):
        box = _Box(left, y - LABEL_HEIGHT / 2 + down, left + size, y + LABEL_HEIGHT / 2 + down)
        if not any(map(box.overlaps, occupied)) and box.bottom <= HEIGHT - BOTTOM_MARGIN:
            return box
    return _Box(sides[0], y - LABEL_HEIGHT / 2, sides[0] + size, y + LABEL_HEIGHT / 2)


def _draw_error_bar(axes: Axes, point: LabeledPoint, x: float) -> list[Html]:
    if not point.y_error:
        return []
    return [
        element(
            "line",
            x1=x,
            x2=x,
            y1=axes.y(point.y - point.y_error),
            y2=axes.y(point.y + point.y_error),
            class_=f"arm {point.color}",
        )
    ]


def _draw_dot(point: LabeledPoint, x: float, y: float, x_label: str) -> Html:
    off = f" ± {point.y_error:.2g}" if point.y_error else ""
    told = element("title", f"{point.name}: {point.y:.4g}{off} at {format_compact(point.x)} {x_label}")
    return element("circle", told, cx=x, cy=y, r=5, class_=f"dot {point.color}")


def _reference_label(name: str, y: float) -> Html:
    return element("text", name, x=LEFT_MARGIN + 4, y=y - 5, text_anchor="start")
