"""HTML sections of position encodings: similarity of position vectors, and attention biases by distance."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .charts import FULL_WIDTH, HALF_WIDTH, Series, heat_map, line_chart
from .html import Section, format_value, render

Floats = NDArray[np.float32]

MAX_CELLS = 160  # rows and columns of a heat map
MAX_DIMENSIONS = 256  # columns of the vectors
MAX_SERIES = 8  # heads as lines, else as rows of a heat map only
MAX_DISTANCE = 128
VECTORS_CAPTION = (
    "Left: cosine similarity of every two positions, blue where they are alike. Right: the mean similarity of two positions "
    "by their distance. Below: the vectors, a row for each position, relative to the largest value."
)
BIAS_CAPTION = (
    "What each head adds to the attention score of a token, by its distance: negative distances are tokens before the one that "
    "attends. Blue raises the score, orange lowers it, relative to the largest value."
)


def render_position_vectors(name: str, positions: NDArray[np.int64], vectors: Floats, similarity: Floats) -> Section:
    """`vectors` (n, dimensions) and their cosine `similarity` (n, n)."""
    shown = _sample(len(positions), MAX_CELLS)
    labels = [str(position) for position in positions[shown]]
    similarity_map = heat_map("Cosine similarity", similarity[np.ix_(shown, shown)], labels, labels)
    reach = min(MAX_DISTANCE, len(positions) - 1)
    by_distance = [(float(d), float(similarity.diagonal(d).mean())) for d in range(reach + 1)]
    curve = line_chart("Mean cosine similarity by distance", [Series("similarity", by_distance)], "distance", width=HALF_WIDTH)
    columns = _sample(vectors.shape[1], MAX_DIMENSIONS)
    largest = float(np.abs(vectors).max()) or 1.0
    table = vectors[np.ix_(shown, columns)] / largest
    table_map = heat_map("Vectors (rows: positions, columns: dimensions)", table, labels, [str(c) for c in columns],
                         width=FULL_WIDTH)  # fmt: skip
    neighbors = similarity.diagonal(1)
    facts = [
        ("positions", len(positions), f"{vectors.shape[1]:,} dimensions"),
        ("similarity of neighbors", float(neighbors.mean()) if len(neighbors) else 1.0, "mean cosine of adjacent positions"),
        (f"similarity at distance {reach}", by_distance[-1][1], "mean cosine"),
        ("mean norm", float(np.linalg.norm(vectors, axis=1).mean()), "of the vectors"),
    ]
    charts = (similarity_map, curve, table_map)
    body = render("positions", "vectors", facts=facts, caption=VECTORS_CAPTION, pair=charts[:2], table=table_map)
    return Section(name[0].upper() + name[1:], body, charts)


def render_distance_bias(name: str, distances: NDArray[np.int64], values: Floats) -> Section:
    """`values` (heads, distances)."""
    heads = [f"head {number}" for number in range(1, len(values) + 1)]
    largest = float(np.abs(values).max()) or 1.0
    columns = _sample(len(distances), 2 * MAX_CELLS)
    bias_map = heat_map("Bias of every head by distance", values[:, columns] / largest, heads,
                        [str(distance) for distance in distances[columns]], width=FULL_WIDTH)  # fmt: skip
    series = _bias_series(heads, distances, values)
    curve = line_chart("Bias by distance", series, "distance (key - query)")
    facts = [("heads", len(values), f"distances {distances[0]} to {distances[-1]}"),
             ("largest bias", format_value(float(values.max())), "of all heads and distances"),
             ("smallest bias", format_value(float(values.min())), "of all heads and distances")]  # fmt: skip
    body = render("positions", "bias", facts=facts, caption=BIAS_CAPTION, charts=(curve, bias_map))
    return Section(name[0].upper() + name[1:], body, (curve, bias_map))


def _bias_series(heads: Sequence[str], distances: NDArray[np.int64], values: Floats) -> list[Series]:
    if len(values) > MAX_SERIES:
        heads, values = ["mean over heads"], values.mean(0, keepdims=True)
    return [
        Series(head, list(zip(distances.tolist(), row.tolist(), strict=True))) for head, row in zip(heads, values, strict=True)
    ]


def _sample(count: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` indices, evenly spaced."""
    return np.arange(count) if count <= limit else np.linspace(0, count - 1, limit).round().astype(np.int64)
