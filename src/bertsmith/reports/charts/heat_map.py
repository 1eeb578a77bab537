"""Matrices as colored cells: with labels, as a grid of many, or with the values as text."""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from .axes import FULL_WIDTH, HALF_WIDTH, tag
from .chart import Chart, text_width

POSITIVE, NEGATIVE = (42, 111, 208), (217, 98, 43)  # blue, orange; the opacity is the value: 0 is the background
MAX_LABEL = 14  # characters of a label that are shown
LABEL_MARGIN = 96  # for the labels of rows and columns, at most
GRID_MARGIN = 48
MAX_HEIGHT, MIN_ROW = 420.0, 14.0  # of a matrix that is not square, and of its rows where there are few
MAX_CELL = 74.0  # width of a matrix in a grid, at most, and of a cell with its value

Values = NDArray[np.floating]


def heat_map(
    title: str, values: Values, row_labels: Sequence[str], column_labels: Sequence[str], subtitle: str = "",
    width: int = HALF_WIDTH,
) -> Chart:  # fmt: skip
    """(rows, columns) of values from -1 to 1, with labels; cells are square. Labels that would overlap are left out."""
    (num_rows, num_columns), left, top = values.shape, _label_room(row_labels), _label_room(column_labels)
    cell = (width - left) / num_columns
    row_height = cell if num_rows == num_columns else min(cell, MAX_HEIGHT / num_rows)
    row_height = max(row_height, MIN_ROW) if num_rows <= MAX_HEIGHT / MIN_ROW else row_height
    shapes = [_image(values, left, top, cell * num_columns, row_height * num_rows)]
    for row, label in enumerate(row_labels):
        if size := _font_size(row_height, row, row_labels):
            y = top + (row + 0.5) * row_height + size / 3
            shapes.append(_label(label, size, x=left - 4, y=y, text_anchor="end"))
    for column, label in enumerate(column_labels):
        if size := _font_size(cell, column, column_labels):
            x = left + (column + 0.5) * cell + size / 3
            shapes.append(_label(label, size, x=x, y=top - 4, transform=f"rotate(-90 {x:.5g} {top - 4:.5g})"))
    return Chart(title, shapes, width, top + row_height * num_rows, subtitle=subtitle)


def heat_grid(
    title: str, matrices: Sequence[Sequence[tuple[Values, str]]], row_names: Sequence[str], column_names: Sequence[str]
) -> Chart:
    """Small matrices of (values from -1 to 1, tooltip) in rows and columns: the heads of layers."""
    num_columns = max(len(row) for row in matrices)
    size = min(MAX_CELL, (FULL_WIDTH - GRID_MARGIN) / num_columns)
    inner = size * 0.92
    shapes = [
        tag("text", name, x=GRID_MARGIN + (column + 0.46) * size, y=12, text_anchor="middle")
        for column, name in enumerate(column_names)
    ]
    for row, (name, cells) in enumerate(zip(row_names, matrices, strict=True)):
        y = 20 + row * size
        shapes.append(tag("text", name, x=GRID_MARGIN - 8, y=y + inner / 2 + 4, text_anchor="end"))
        for column, (values, tooltip) in enumerate(cells):
            x = GRID_MARGIN + column * size
            frame = tag("rect", tag("title", tooltip), x=x, y=y, width=inner, height=inner, class_="cell")
            shapes += [_image(values, x, y, inner, inner), frame]
    width = GRID_MARGIN + size * num_columns
    return Chart(title, shapes, width, 20 + size * len(matrices), fills_page=False)


def value_map(
    title: str, cells: Sequence[Sequence[tuple[str, float]]], row_names: Sequence[str], column_names: Sequence[str],
    corner: str = "layer", extra_columns: Sequence[tuple[str, Sequence[str]]] = (), subtitle: str = "",
) -> Chart:  # fmt: skip
    """A table of (text, heat from -1 to 1), colored by the heat; `extra_columns` have a name and a text for each row."""
    num_columns = max(len(row) for row in cells)
    left = max(GRID_MARGIN, 14 + max(text_width(_shorten(name)) for name in (*row_names, corner)))
    size = min(MAX_CELL, (FULL_WIDTH - left) / (num_columns + 1.4 * len(extra_columns)))
    height, font = 28.0, "font-size: 11px" if size > 40 else "font-size: 9px"
    shapes = [tag("text", corner, x=left - 8, y=12, text_anchor="end")]
    for column, name in enumerate(column_names):
        shapes.append(tag("text", _shorten(name), x=left + (column + 0.5) * size, y=12, text_anchor="middle", style=font))
    for row, (name, values) in enumerate(zip(row_names, cells, strict=True)):
        y = 20 + row * height
        shapes.append(tag("text", _shorten(name), x=left - 8, y=y + height / 2 + 4, text_anchor="end"))
        for column, (text, heat) in enumerate(values):
            x = left + column * size
            shapes.append(_cell(heat, x + 1, y + 1, size - 2, height - 2))
            shapes.append(
                tag("text", text, x=x + size / 2, y=y + height / 2 + 4, text_anchor="middle", class_="value", style=font)
            )
    for index, (name, texts) in enumerate(extra_columns):
        x = left + size * (num_columns + 1.4 * index + 1.3)
        shapes.append(tag("text", name, x=x, y=12, text_anchor="end", style=font))
        for row, text in enumerate(texts):
            shapes.append(tag("text", text, x=x, y=20 + row * height + height / 2 + 4, text_anchor="end"))
    width = left + size * (num_columns + 1.4 * len(extra_columns))
    return Chart(title, shapes, width, 20 + height * len(cells), subtitle=subtitle, fills_page=False)


def heat_image(values: Values) -> str:
    """A PNG as data URI: one pixel for each value from -1 (orange) over 0 (transparent) to 1 (blue)."""
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3] = np.where(values[..., None] < 0, NEGATIVE, POSITIVE)
    pixels[..., 3] = np.round(np.abs(values).clip(0, 1) * 255)
    rows = np.concatenate([np.zeros((len(pixels), 1), np.uint8), pixels.reshape(len(pixels), -1)], 1)  # filter 0 for each row
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 6, 0, 0, 0)  # 8 bits, RGBA
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def heat_color(heat: float, opacity: float = 0.75) -> str:
    """The color of a value from -1 to 1, as CSS; `opacity` is that of 1, below 1 so that text on it stays readable."""
    red, green, blue = NEGATIVE if heat < 0 else POSITIVE
    return f"rgba({red}, {green}, {blue}, {opacity * min(abs(heat), 1.0):.3g})"


def _image(values: Values, x: float, y: float, width: float, height: float) -> Markup:
    return tag("image", href=heat_image(values), x=x, y=y, width=width, height=height, preserveAspectRatio="none",
               style="image-rendering: pixelated")  # fmt: skip


def _cell(heat: float, x: float, y: float, width: float, height: float) -> Markup:
    return tag("rect", x=x, y=y, width=width, height=height, rx=4, style=f"fill: {heat_color(heat)}")


def _label(label: str, size: float, **attributes: str | float) -> Markup:
    return tag("text", _shorten(label), style=f"font-size: {size:.3g}px", **attributes)


def _label_room(labels: Sequence[str]) -> float:
    """Pixels beside or above a matrix for its longest label."""
    return min(LABEL_MARGIN, 12 + max((text_width(_shorten(label), 6.4) for label in labels), default=0.0))


def _font_size(cell: float, index: int, labels: Sequence[str]) -> float:
    """The size of the label beside a cell of this size; 0 for one that has no room. Of numbers, the others can be left out."""
    if cell >= (9.0 if all(label.lstrip("-").isdigit() for label in labels) else 4.0):
        return min(11.0, 0.9 * cell)
    return 11.0 if index % int(np.ceil(14 / cell)) == 0 else 0.0


def _shorten(label: str) -> str:
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
