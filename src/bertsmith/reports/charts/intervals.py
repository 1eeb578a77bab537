"""Intervals: a value with its error bar for a table cell, and one row of values per name as an SVG file."""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from .axes import Axes, Frame, tag
from .chart import svg_file

WHISKER_WIDTH, WHISKER_HEIGHT, WHISKER_MARGIN = 240, 20, 8
ROW_HEIGHT = 20  # of a dumbbell chart, in pixels
DUMBBELL_FRAME = Frame(width=720, height=0, left=190, right=60, top=64, bottom=30)  # the height grows with the rows


def whisker(
    low: float, value: float, high: float, x_range: tuple[float, float], reference: float | None = None, color: str = "one"
) -> Markup:
    """A dot with an error bar from `low` to `high`; `reference` is a dashed vertical line. Empty for a NaN value."""
    if math.isnan(value):
        return Markup("")
    axes = Axes(x_range, (0, 1), Frame(WHISKER_WIDTH, WHISKER_HEIGHT, WHISKER_MARGIN, WHISKER_MARGIN, 0, 0))
    to_x = lambda number: axes.x(min(max(number, x_range[0]), x_range[1]))
    middle, shapes = WHISKER_HEIGHT / 2, []
    if reference is not None:
        shapes.append(tag("line", x1=to_x(reference), x2=to_x(reference), y1=0, y2=WHISKER_HEIGHT, class_="level"))
    if low < high:
        shapes.append(tag("line", x1=to_x(low), x2=to_x(high), y1=middle, y2=middle, class_=f"arm {color}"))
    shapes.append(tag("circle", cx=to_x(value), cy=middle, r=5, class_=f"dot {color}"))
    label = f"{value:.4g}, from {low:.4g} to {high:.4g}" if low < high else f"{value:.4g}"
    view_box = f"0 0 {WHISKER_WIDTH} {WHISKER_HEIGHT}"
    return tag("svg", *shapes, viewBox=view_box, class_="whisker", role="img", aria_label=label)


def dumbbell_chart(title: str, rows: Sequence[tuple[str, Mapping[str, float]]], colors: Mapping[str, str]) -> bytes:
    """An SVG file: (name, value by kind), one row each, its values joined by a line and the largest written as text.

    `colors` has the color of every kind, in the order of the legend; the first kind is drawn as a ring.
    """
    values = [value for _, row in rows for value in row.values()]
    low, high = 5 * math.floor(min(values) / 5), 5 * math.ceil((max(values) + 0.1) / 5)
    frame = DUMBBELL_FRAME
    frame = Frame(
        frame.width, frame.top + ROW_HEIGHT * len(rows) + frame.bottom, frame.left, frame.right, frame.top, frame.bottom
    )
    axes = Axes((low, high), (0, 1), frame)
    classes = {kind: f"{color} hollow" if index == 0 else color for index, (kind, color) in enumerate(colors.items())}
    shapes = [tag("text", title, x=16, y=24, class_="title")]
    for index, (kind, css_class) in enumerate(classes.items()):
        x = frame.left + 90 * index
        shapes += [tag("circle", cx=x + 6, cy=44, r=5, class_=css_class), tag("text", kind, x=x + 18, y=48)]
    for value in range(low, high + 1, 5):
        label = tag("text", str(value), x=axes.x(value), y=axes.bottom + 18, text_anchor="middle")
        shapes += [axes.vertical_line(value, "grid"), label]
    for index, (name, row) in enumerate(rows):
        y, first, last = frame.top + ROW_HEIGHT * (index + 0.5), axes.x(min(row.values())), axes.x(max(row.values()))
        shapes += [tag("text", name, x=frame.left - 14, y=y + 4, class_="end"),
                   tag("line", x1=first, x2=last, y1=y, y2=y, class_="bridge"),
                   *(tag("circle", cx=axes.x(value), cy=y, r=5, class_=classes[kind]) for kind, value in row.items()),
                   tag("text", f"{max(row.values()):.1f}", x=last + 10, y=y + 4)]  # fmt: skip
    return svg_file(title, shapes, frame.width, frame.height)
