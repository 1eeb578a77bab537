"""HTML sections of attention statistics: learned spans (adaptive span), LSH bucket statistics (Reformer)."""

import math
from typing import NamedTuple

from .charts import Series, line_chart
from .html import Html, element, format_value, note, section, tiles


class SpanLayer(NamedTuple):
    """Learned attention spans of one layer (Sukhbaatar et al. 2019)."""

    spans: list[float]  # of each head, in positions
    trimmed_span: int  # keys further away are not computed


class BucketLayer(NamedTuple):
    """LSH statistics of one layer, one value per head (Kitaev et al. 2020)."""

    mean_neighbors: list[float]  # other tokens that a token can attend to, over all hash rounds
    isolated_fraction: list[float]  # of tokens without any neighbor
    attention_recall: list[float]  # fraction of the full attention weight that falls on the neighbors


def render_spans(layers: list[SpanLayer], max_span: int, ramp: int, causal: bool) -> Html:
    """Spans of every head, one row per layer, and the number of keys computed with them."""
    all_spans = [span for layer in layers for span in layer.spans]
    mean, mean_trimmed = sum(all_spans) / len(all_spans), sum(layer.trimmed_span for layer in layers) / len(layers)
    direction = "back" if causal else "to either side"
    facts = [("mean span", mean, f"positions {direction}, of {max_span:,} that a head could learn"),
             ("longest span", max(all_spans), f"sight fades over {ramp} positions behind it"),
             ("mean reach", mean_trimmed, f"keys {direction} that a layer computes for a query"),
             ("keys computed", f"{mean_trimmed / max_span:.1%}", "of those that spans of full length would take")]  # fmt: skip
    max_points = [(i, max(layer.spans)) for i, layer in enumerate(layers, 1)]
    mean_points = [(i, sum(layer.spans) / len(layer.spans)) for i, layer in enumerate(layers, 1)]
    series = [Series("mean", mean_points, "dots"), Series("longest", max_points, "dots")]
    chart = line_chart("Spans, from the first layer to the last", series, "layer", include_zero=True)
    caption = "A head looks so many positions far before its sight fades; darker is further, on a logarithmic scale."
    return section("Spans", tiles(facts), chart, note(caption), _span_table(layers, max_span))


def render_buckets(layers: list[BucketLayer], length: int) -> Html:
    """Attention recall of every head, one row per layer; `length` is that of the longest text."""
    mean_neighbors, isolated, recall = (_mean(values) for values in zip(*layers, strict=True))
    facts = [("attention caught", f"{recall:.1%}", "of the weight that one bucket for all would give, on those met"),
             ("others met", mean_neighbors, f"by a token in all rounds together, of {length - 1:,} in the longest text"),
             ("alone", f"{isolated:.1%}", "of the tokens met nobody, and looked at themselves")]  # fmt: skip
    caption = "Each cell: of all that a head would look at, how much its hashes brought before it; darker is more."
    return section("Buckets", tiles(facts), note(caption), _bucket_table(layers))


def _span_table(layers: list[SpanLayer], max_span: int) -> Html:
    heads = range(1, max(len(layer.spans) for layer in layers) + 1)
    names = ["layer", *(f"head {i}" for i in heads), "reach"]
    rows = [element("tr", element("th", str(i)), *(_span_cell(span, max_span) for span in layer.spans),
                    element("td", format_value(layer.trimmed_span))) for i, layer in enumerate(layers, 1)]  # fmt: skip
    header = element("thead", element("tr", *(element("th", name) for name in names)))
    return element("div", element("table", header, element("tbody", *rows), class_="heat"), class_="table")


def _span_cell(span: float, max_span: int) -> Html:
    heat = 90 * math.log1p(span) / math.log1p(max_span)
    return element("td", f"{span:,.0f}", class_="right", style=f"--heat: {heat:.0f}")


def _mean(values_per_layer: tuple[list[float], ...]) -> float:
    values = [v for layer in values_per_layer for v in layer]
    return sum(values) / len(values)


def _bucket_table(layers: list[BucketLayer]) -> Html:
    heads = range(1, max(len(layer.attention_recall) for layer in layers) + 1)
    names = ["layer", *(f"head {i}" for i in heads), "met", "alone"]
    rows = [element("tr", element("th", str(i)), *map(_bucket_cell, layer.attention_recall),
                    element("td", f"{sum(layer.mean_neighbors) / len(layer.mean_neighbors):,.1f}", class_="right"),
                    element("td", f"{sum(layer.isolated_fraction) / len(layer.isolated_fraction):.1%}", class_="right"))
            for i, layer in enumerate(layers, 1)]  # fmt: skip
    header = element("thead", element("tr", *(element("th", name) for name in names)))
    return element("div", element("table", header, element("tbody", *rows), class_="heat"), class_="table")


def _bucket_cell(fraction: float) -> Html:
    return element("td", f"{fraction:.0%}", class_="right", style=f"--heat: {90 * fraction:.0f}")
