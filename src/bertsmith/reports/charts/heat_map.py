"""Heat maps of a matrix: with labels as a figure, or as a bare image for a table of many."""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from .axes import HALF_WIDTH, figure, tag

COLOR = (42, 111, 208)  # blue; the value is the opacity, so that 0 is the background of either color scheme
MAX_LABEL = 14  # characters of a label that are shown


def heat_map(title: str, values: NDArray[np.float32], row_labels: Sequence[str], column_labels: Sequence[str]) -> Markup:
    """(rows, columns) of values from 0 to 1, with a label at each row and column."""
    margin, (num_rows, num_columns) = 96, values.shape
    cell = (HALF_WIDTH - margin) / num_columns
    font_size = max(4.0, min(11.0, 0.9 * cell))
    shapes = [
        tag("image", href=heat_image(values), x=margin, y=margin, width=cell * num_columns, height=cell * num_rows,
            preserveAspectRatio="none", style="image-rendering: pixelated")
    ]  # fmt: skip
    for row, label in enumerate(row_labels):
        y = margin + (row + 0.5) * cell + font_size / 3
        shapes.append(tag("text", _shorten(label), x=margin - 4, y=y, text_anchor="end", style=f"font-size: {font_size:.3g}px"))
    for column, label in enumerate(column_labels):
        x = margin + (column + 0.5) * cell + font_size / 3
        shapes.append(
            tag(
                "text",
                _shorten(label),
                x=x,
                y=margin - 4,
                style=f"font-size: {font_size:.3g}px",
                transform=f"rotate(-90 {x:.5g} {margin - 4})",
            )
        )
    return figure(title, shapes, HALF_WIDTH, margin + cell * num_rows)


def heat_image(values: NDArray[np.float32]) -> str:
    """A PNG as data URI: one pixel for each value from 0 to 1."""
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3] = COLOR
    pixels[..., 3] = np.round(values.clip(0, 1) * 255)
    rows = np.concatenate([np.zeros((len(pixels), 1), np.uint8), pixels.reshape(len(pixels), -1)], 1)  # filter 0 for each row
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 6, 0, 0, 0)  # 8 bits, RGBA
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _shorten(label: str) -> str:
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"
