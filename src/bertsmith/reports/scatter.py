"""Scatter plots as inline SVG.

- `scatter_panel`: a square plot of 2-d projections (`project_pca`) with tooltips and links to nearest neighbours.
- `scatter_chart`: labeled points with error bars on a logarithmic x axis.
"""

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
POINT_TOLERANCE = 1e-6  # relative to the largest value: points closer than this are equal
LABEL_HEIGHT = 13  # of a point label, in pixels
CHAR_WIDTH = 6.9  # approximate width of a character of a label, in pixels


@dataclass(frozen=True)
class Marker:
    """Color, tooltip and neighbours of a point in a panel."""

    color: str
    tooltip: str
    neighbors: tuple[int, ...] = ()  # indices of its nearest neighbours, nearest first


class LabeledPoint(NamedTuple):
    """A point of `scatter_chart` with its name beside it."""

    name: str
    x: float  # > 0
    y: float
    color: str = COLORS[0]
    y_error: float = 0.0  # half the length of the error bar


def project_pca(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Projects (points, dimensions) onto the first two principal components: (points, 2) float64.

    Signs are fixed (the largest coefficient of each component is positive), so that the result is deterministic; equal
    points are all at (0, 0).
    """
    centered = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    if not len(centered) or np.abs(centered).max(initial=0) <= POINT_TOLERANCE * max(
        1.0, float(np.abs(vectors).max(initial=0))
    ):
        return np.zeros((len(centered), 2))
    u, singular_values, vt = np.linalg.svd(centered, full_matrices=False)
    num_components = min(2, len(singular_values))
    signs = np.sign(vt[np.arange(num_components), np.abs(vt[:num_components]).argmax(1)])
    projected = np.zeros((len(centered), 2))
    projected[:, :num_components] = u[:, :num_components] * singular_values[:num_components] * signs
    return projected


def scatter_panel(title: str, subtitle: str, positions: NDArray[np.float64], markers: Sequence[Marker]) -> Html:
    """A figure with `subtitle` in small print beside the title; says so where all points coincide."""
    pixels = _fit_to_panel(positions)
    background = element("rect", x=0.5, y=0.5, width=PANEL_SIZE - 1, height=PANEL_SIZE - 1, rx=8, class_="panel")
    points = [_draw_panel_point(index, pixels, marker) for index, marker in enumerate(markers)]
    if len(markers) > 1 and not np.ptp(pixels, axis=0).any():
        label = element(
            "text", f"all {len(markers)} are one point", x=PANEL_SIZE / 2, y=PANEL_SIZE / 2 + 26, text_anchor="middle"
        )
        points.append(label)
    svg = element("svg", background, *points, viewBox=f"0 0 {PANEL_SIZE} {PANEL_SIZE}", role="img", aria_label=title)
    return element("figure", element("figcaption", title, element("small", subtitle)), svg)


def scatter_chart(
    title: str,
    points: Sequence[LabeledPoint],
    x_label: str,
    reference: tuple[str, float] | None = None,
    width: int = HALF_WIDTH * 2,
) -> Html:
    """A figure with a logarithmic x axis; `reference` is a named dashed line. Labels are moved where they would overlap."""
    if not points:
        return element("figure", element("figcaption", title), element("p", "Nothing was measured yet.", class_="note"))
    log_x = [math.log10(point.x) for point in points]
    padding = 0.08 * (max(log_x) - min(log_x)) or 0.5
    edges = [edge for point in points for edge in (point.y - point.y_error, point.y + point.y_error)] + (
        [reference[1]] if reference else []
    )
    axes = Axes((min(log_x) - padding, max(log_x) + padding), compute_ticks(min(edges), max(edges)), width)
    pixels = [(point, axes.x(math.log10(point.x)), axes.y(point.y)) for point in sorted(points, key=lambda point: -point.y)]
    occupied = [_Box(x - 6, y - 6, x + 6, y + 6) for _, x, y in pixels]
    shapes = [shape for point, x, y in pixels for shape in (*_draw_error_bar(axes, point, x), _draw_dot(point, x, y, x_label))]
    for point, x, y in pixels:
        occupied.append(_place_label(point.name, x, y, occupied, width))
        shapes.append(element("text", point.name, x=occupied[-1].left, y=occupied[-1].bottom - 3, class_="value"))
    reference_line = (
        [axes.horizontal_line(reference[1], "level"), _reference_label(reference[0], axes.y(reference[1]))] if reference else []
    )
    svg = element(
        "svg",
        *_draw_grid(axes, x_label),
        *reference_line,
        *shapes,
        viewBox=f"0 0 {width} {HEIGHT}",
        role="img",
        aria_label=title,
    )
    return element("figure", element("figcaption", title), svg)


def _fit_to_panel(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scales (points, 2) to the panel, equally in x and y; outliers beyond the 1% quantiles are clipped to its edge."""
    if not len(positions):
        return positions
    low, high = np.quantile(positions, 0.01, axis=0), np.quantile(positions, 0.99, axis=0)
    span = float((high - low).max()) or 1.0
    fractions = np.clip((positions - (low + high) / 2) / span + 0.5, -0.02, 1.02)
    return PANEL_MARGIN + fractions * (PANEL_SIZE - 2 * PANEL_MARGIN)


def _draw_panel_point(index: int, positions: NDArray[np.float64], marker: Marker) -> Html:
    x, y = positions[index]
    links = [
        element("line", x1=x, y1=y, x2=positions[n][0], y2=positions[n][1], class_=f"link {marker.color}")
        for n in marker.neighbors
    ]
    dot = element("circle", element("title", marker.tooltip), cx=x, cy=y, r=4.2, class_=f"dot {marker.color}")
    return element("g", *links, dot, class_="point")


class _Box(NamedTuple):
    """A rectangle in pixels; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "_Box") -> bool:
        overlaps_in_x = self.left < other.right and other.left < self.right
        return overlaps_in_x and self.top < other.bottom and other.top < self.bottom


def _draw_grid(axes: Axes, x_label: str) -> list[Html]:
    """Horizontal grid lines, and x ticks at 1, 2 and 5 times powers of ten (at powers of ten only, if too many)."""
    low, high = axes.x_range
    ticks = [multiple * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for multiple in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    ticks = [tick for tick in ticks if len(ticks) <= 9 or round(math.log10(tick), 6) == round(math.log10(tick))]
    y = HEIGHT - BOTTOM_MARGIN + 17
    labels = [element("text", format_compact(tick), x=axes.x(math.log10(tick)), y=y, text_anchor="middle") for tick in ticks]
    return [*axes.draw_grid(x_label, label_x_ticks=False), *labels]


def _place_label(name: str, x: float, y: float, occupied: Sequence[_Box], width: int) -> _Box:
    """Right or left of the dot, moved down until it overlaps no occupied box; beside the dot if there is no free place."""
    text_width = CHAR_WIDTH * len(name)
    left_edges = [
        left for left in (x + 8, x - 8 - text_width) if left >= LEFT_MARGIN and left + text_width <= width - RIGHT_MARGIN
    ] or [x - 8 - text_width]
    for offset, left in product(range(0, HEIGHT, 2), left_edges):
        box = _Box(left, y - LABEL_HEIGHT / 2 + offset, left + text_width, y + LABEL_HEIGHT / 2 + offset)
        if not any(map(box.overlaps, occupied)) and box.bottom <= HEIGHT - BOTTOM_MARGIN:
            return box
    return _Box(left_edges[0], y - LABEL_HEIGHT / 2, left_edges[0] + text_width, y + LABEL_HEIGHT / 2)


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
    error = f" ± {point.y_error:.2g}" if point.y_error else ""
    tooltip = element("title", f"{point.name}: {point.y:.4g}{error} at {format_compact(point.x)} {x_label}")
    return element("circle", tooltip, cx=x, cy=y, r=5, class_=f"dot {point.color}")


def _reference_label(name: str, y: float) -> Html:
    return element("text", name, x=LEFT_MARGIN + 4, y=y - 5, text_anchor="start")
