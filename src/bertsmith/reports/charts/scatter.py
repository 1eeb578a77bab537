"""Scatter plots for pages.

- `scatter_chart`: labeled points with error bars on a logarithmic x axis.
- `scatter_panel`: a square plot of 2-d projections (`project_pca`) with tooltips and links to nearest neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from .axes import (
    COLORS,
    HALF_WIDTH,
    HEIGHT,
    Axes,
    Frame,
    compute_ticks,
    format_compact,
    log_ticks,
    tag,
)
from .chart import CHAR_WIDTH, Chart, LegendEntry, empty_chart

PANEL_SIZE, PANEL_MARGIN = 300, 14
POINT_TOLERANCE = 1e-6  # relative to the largest value: points closer than this are equal
LABEL_HEIGHT = 13  # of a point label, in pixels
MAX_TICKS = 9  # with more, only powers of ten are labeled


class LabeledPoint(NamedTuple):
    """A point of `scatter_chart`, labeled with its name."""

    name: str
    x: float  # > 0
    y: float
    color: str = COLORS[0]
    y_error: float = 0.0  # half the length of the error bar


@dataclass(frozen=True)
class Marker:
    """Color, tooltip and neighbours of a point in a panel."""

    color: str
    tooltip: str
    neighbors: tuple[int, ...] = ()  # indices of its nearest neighbours, nearest first


def scatter_chart(
    title: str,
    points: Sequence[LabeledPoint],
    x_label: str,
    reference: tuple[str, float] | None = None,
    width: int = HALF_WIDTH * 2,
) -> Chart:
    """A chart with a logarithmic x axis; `reference` is a named dashed line. Labels are moved where they would overlap."""
    if not points:
        return empty_chart(title, "No data yet.", width)
    axes, y_ticks = _scatter_axes(points, reference, width)
    x_ticks = log_ticks(*axes.x_range, (1, 2, 5))
    x_ticks = x_ticks if len(x_ticks) <= MAX_TICKS else log_ticks(*axes.x_range, (1,))
    shapes = [
        *axes.draw_y_grid(y_ticks),
        axes.horizontal_line(y_ticks[0], "axis"),
        *axes.draw_x_labels([(tick, format_compact(tick)) for tick in x_ticks], x_label),
    ]
    if reference:
        name, y = reference[0], axes.y(reference[1])
        shapes += [axes.horizontal_line(reference[1], "level"), tag("text", name, x=axes.frame.left + 4, y=y - 5)]
    pixels = [(point, axes.x(point.x), axes.y(point.y)) for point in sorted(points, key=lambda point: -point.y)]
    occupied = [_Box(x - 6, y - 6, x + 6, y + 6) for _, x, y in pixels]
    for point, x, y in pixels:
        error, (top, bottom) = point.y_error, (axes.y(point.y + sign * point.y_error) for sign in (1, -1))
        shapes += [tag("line", x1=x, x2=x, y1=bottom, y2=top, class_=f"arm {point.color}")] if error else []
        value = f"{point.y:.4g} ± {error:.2g}" if error else f"{point.y:.4g}"
        tooltip = tag("title", f"{point.name}: {value} at {format_compact(point.x)} {x_label}")
        shapes.append(tag("circle", tooltip, cx=x, cy=y, r=5, class_=f"dot {point.color}"))
    for point, x, y in pixels:
        occupied.append(_place_label(point.name, x, y, occupied, axes))
        shapes.append(tag("text", point.name, x=occupied[-1].left, y=occupied[-1].bottom - 3, class_="value"))
    return Chart(title, shapes, width, HEIGHT)


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


def scatter_panel(
    title: str, subtitle: str, positions: NDArray[np.float64], markers: Sequence[Marker], legend: Sequence[LegendEntry] = ()
) -> Chart:
    """A chart with `subtitle` in small print after the title; a note where all points coincide."""
    pixels = _fit_to_panel(positions)
    shapes = [tag("rect", x=0.5, y=0.5, width=PANEL_SIZE - 1, height=PANEL_SIZE - 1, rx=8, class_="panel")]
    shapes += [_draw_panel_point(index, pixels, marker) for index, marker in enumerate(markers)]
    if len(markers) > 1 and not np.ptp(pixels, axis=0).any():
        text, middle = f"all {len(markers)} points coincide", PANEL_SIZE / 2
        shapes.append(tag("text", text, x=middle, y=middle + 26, text_anchor="middle"))
    return Chart(title, shapes, PANEL_SIZE, PANEL_SIZE, legend=legend, subtitle=subtitle)


def _scatter_axes(points: Sequence[LabeledPoint], reference: tuple[str, float] | None, width: int) -> tuple[Axes, list[float]]:
    """Axes with padding around the outermost points, and their y ticks."""
    xs = [point.x for point in points]
    padding = (max(xs) / min(xs)) ** 0.08 if max(xs) > min(xs) else 10**0.5
    ys = [edge for point in points for edge in (point.y - point.y_error, point.y + point.y_error)]
    ys += [reference[1]] if reference else []
    y_ticks = compute_ticks(min(ys), max(ys))
    x_range = min(xs) / padding, max(xs) * padding
    return Axes(x_range, (y_ticks[0], y_ticks[-1]), Frame(width), x_log=True), y_ticks


class _Box(NamedTuple):
    """A rectangle in pixels; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "_Box") -> bool:
        overlaps_in_x = self.left < other.right and other.left < self.right
        return overlaps_in_x and self.top < other.bottom and other.top < self.bottom


def _place_label(name: str, x: float, y: float, occupied: Sequence[_Box], axes: Axes) -> _Box:
    """Right or left of the dot, moved down until it overlaps no occupied box; next to the dot if there is no free place."""
    text_width, frame = CHAR_WIDTH * len(name), axes.frame
    left_edges = [
        left for left in (x + 8, x - 8 - text_width) if left >= frame.left and left + text_width <= frame.width - frame.right
    ] or [x - 8 - text_width]
    for offset, left in product(range(0, HEIGHT, 2), left_edges):
        box = _Box(left, y - LABEL_HEIGHT / 2 + offset, left + text_width, y + LABEL_HEIGHT / 2 + offset)
        if not any(map(box.overlaps, occupied)) and box.bottom <= axes.bottom:
            return box
    return _Box(left_edges[0], y - LABEL_HEIGHT / 2, left_edges[0] + text_width, y + LABEL_HEIGHT / 2)


def _fit_to_panel(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scales (points, 2) to the panel, equally in x and y; outliers beyond the 1% quantiles are clipped to its edge."""
    if not len(positions):
        return positions
    low, high = np.quantile(positions, 0.01, axis=0), np.quantile(positions, 0.99, axis=0)
    span = float((high - low).max()) or 1.0
    fractions = np.clip((positions - (low + high) / 2) / span + 0.5, -0.02, 1.02)
    return PANEL_MARGIN + fractions * (PANEL_SIZE - 2 * PANEL_MARGIN)


def _draw_panel_point(index: int, positions: NDArray[np.float64], marker: Marker) -> Markup:
    x, y = positions[index]
    links = [
        tag("line", x1=x, y1=y, x2=positions[n][0], y2=positions[n][1], class_=f"link {marker.color}") for n in marker.neighbors
    ]
    dot = tag("circle", tag("title", marker.tooltip), cx=x, cy=y, r=4.2, class_=f"dot {marker.color}")
    return tag("g", *links, dot, class_="point")
