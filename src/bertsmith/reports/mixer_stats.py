"""HTML sections of attention statistics: learned spans (adaptive span), LSH bucket statistics (Reformer)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .charts import Series, line_chart, value_map
from .html import Section, format_value, render


class SpanLayer(NamedTuple):
    """Learned attention spans of one layer (Sukhbaatar et al. 2019)."""

    spans: list[float]  # of each head, in positions
    trimmed_span: int  # keys further away are not computed


class BucketLayer(NamedTuple):
    """LSH statistics of one layer, one value per head (Kitaev et al. 2020)."""

    mean_neighbors: list[float]  # other tokens that a token can attend to, over all hash rounds
    isolated_fraction: list[float]  # of tokens without any neighbor
    attention_recall: list[float]  # fraction of the full attention weight that falls on the neighbors


def render_spans(layers: list[SpanLayer], max_span: int, ramp: int, causal: bool) -> Section:
    """Spans of every head, one row per layer, and the number of keys computed with them."""
    all_spans = [span for layer in layers for span in layer.spans]
    mean, mean_trimmed = _mean(all_spans), _mean([layer.trimmed_span for layer in layers])
    direction = "to the left" if causal else "to each side"
    facts = [("mean span", mean, f"tokens {direction}, of at most {max_span:,}"),
             ("longest span", max(all_spans), f"tokens, followed by a ramp of {ramp} tokens"),
             ("mean trimmed span", mean_trimmed, f"keys {direction} that a layer computes per query"),
             ("keys computed", f"{mean_trimmed / max_span:.1%}", "relative to full spans")]  # fmt: skip
    max_points = [(i, max(layer.spans)) for i, layer in enumerate(layers, 1)]
    mean_points = [(i, _mean(layer.spans)) for i, layer in enumerate(layers, 1)]
    series = [Series("mean", mean_points, "dots"), Series("longest", max_points, "dots")]
    chart = line_chart("Attention span by layer (tokens)", series, "layer", include_zero=True)
    caption = (
        "Each cell is the learned span of a head, in tokens: the distance at which its attention begins to fade. "
        "Color is on a logarithmic scale."
    )
    cells = value_map(
        "Learned span of every head",
        [[(f"{span:,.0f}", _span_heat(span, max_span)) for span in layer.spans] for layer in layers],
        *_names([layer.spans for layer in layers]),
        extra_columns=[("trimmed span", [format_value(layer.trimmed_span) for layer in layers])],
    )  # fmt: skip
    body = render("mixer_stats", "spans", facts=facts, chart=chart, caption=caption, cells=cells)
    return Section("Attention spans", body, (chart, cells))


def render_buckets(layers: list[BucketLayer], length: int) -> Section:
    """Attention recall of every head, one row per layer; `length` is the length of the text in tokens."""
    mean_neighbors, isolated, recall = (
        _mean([value for values in values_by_layer for value in values]) for values_by_layer in zip(*layers, strict=True)
    )
    facts = [("attention recall", f"{recall:.1%}", "of the weight of full attention falls on tokens of the same buckets"),
             ("neighbors", mean_neighbors, f"of a token over all hash rounds, of {length - 1:,} other tokens"),
             ("isolated tokens", f"{isolated:.1%}", "without neighbors, which attend only to themselves")]  # fmt: skip
    caption = "Each cell is the attention recall of a head: the share of the full attention weight that LSH attention keeps."
    cells = value_map(
        "Attention recall of every head",
        [[(f"{fraction:.0%}", fraction) for fraction in layer.attention_recall] for layer in layers],
        *_names([layer.attention_recall for layer in layers]),
        extra_columns=[("neighbors", [f"{_mean(layer.mean_neighbors):,.1f}" for layer in layers]),
                       ("isolated", [f"{_mean(layer.isolated_fraction):.1%}" for layer in layers])],
    )  # fmt: skip
    return Section("LSH buckets", render("macros", "facts_note_chart", facts=facts, caption=caption, chart=cells), (cells,))


def _names(layers: Sequence[Sequence[float]]) -> tuple[list[str], list[str]]:
    """Names of the rows (layers) and columns (heads)."""
    num_heads = max(map(len, layers))
    return [str(i) for i in range(1, len(layers) + 1)], [f"head {i}" for i in range(1, num_heads + 1)]


def _span_heat(span: float, max_span: int) -> float:
    """Color intensity of a cell, at most 1."""
    return math.log1p(span) / math.log1p(max_span)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
