"""How far the heads of every layer have learned to look."""

import math
from typing import NamedTuple

from .charts import Series, line_chart
from .html import Html, element, format_value, note, section, tiles


class SpanLayer(NamedTuple):
    spans: list[float]  # of each head, in positions
    trimmed_span: int  # keys further away are not computed


def render_spans(layers: list[SpanLayer], max_span: int, ramp: int, causal: bool) -> Html:
    """The spans of every head, a row a layer, and what the layers compute because of them."""
    every = [span for layer in layers for span in layer.spans]
    mean, reach = sum(every) / len(every), sum(layer.trimmed_span for layer in layers) / len(layers)
    told = "back" if causal else "to either side"
    facts = [("mean span", mean, f"positions {told}, of {max_span:,} that a head could learn"),
             ("longest span", max(every), f"sight fades over {ramp} positions behind it"),
             ("mean reach", reach, f"keys {told} that a layer computes for a query"),
             ("keys computed", f"{reach / max_span:.1%}", "of those that spans of full length would take")]  # fmt: skip
    upper = Series("longest", [(number, max(layer.spans)) for number, layer in enumerate(layers, 1)], "dots")
    means = [(number, sum(layer.spans) / len(layer.spans)) for number, layer in enumerate(layers, 1)]
    figure = line_chart(
        "Spans, from the first layer to the last", [Series("mean", means, "dots"), upper], "layer", include_zero=True
    )
    words = "A head looks so many positions far before its sight fades; darker is further, on a logarithmic scale."
    return section("Spans", tiles(facts), figure, note(words), _span_table(layers, max_span))


def _span_table(layers: list[SpanLayer], max_span: int) -> Html:
    heads = range(1, max(len(layer.spans) for layer in layers) + 1)
    names = ["layer", *(f"head {number}" for number in heads), "reach"]
    rows = [element("tr", element("th", str(number)), *(_span_cell(span, max_span) for span in layer.spans),
                    element("td", format_value(layer.trimmed_span))) for number, layer in enumerate(layers, 1)]  # fmt: skip
    head = element("thead", element("tr", *(element("th", name) for name in names)))
    return element("div", element("table", head, element("tbody", *rows), class_="heat"), class_="table")


def _span_cell(span: float, max_span: int) -> Html:
    heat = 90 * math.log1p(span) / math.log1p(max_span)
    return element("td", f"{span:,.0f}", class_="right", style=f"--heat: {heat:.0f}")


class BucketLayer(NamedTuple):
    """A number for each head."""

    mean_neighbors: list[float]  # others that a token meets
    isolated_fraction: list[float]  # share of the tokens that meet nobody
    attention_recall: list[float]  # share of the attention that falls on those met


def render_buckets(layers: list[BucketLayer], length: int) -> Html:
    """For every head the share of attention that hashing caught, a row a layer; `length` is that of the texts looked at."""
    met, alone, caught = (_mean(parts) for parts in zip(*layers, strict=True))
    facts = [("attention caught", f"{caught:.1%}", "of the weight that one bucket for all would give, on those met"),
             ("others met", met, f"by a token in all rounds together, of {length - 1:,} in the longest text"),
             ("alone", f"{alone:.1%}", "of the tokens met nobody, and looked at themselves")]  # fmt: skip
    words = "Each cell: of all that a head would look at, how much its hashes brought before it; darker is more."
    return section("Buckets", tiles(facts), note(words), _bucket_table(layers))


def _mean(values_per_layer: tuple[list[float], ...]) -> float:
    every = [value for part in values_per_layer for value in part]
    return sum(every) / len(every)


def _bucket_table(layers: list[BucketLayer]) -> Html:
    heads = range(1, max(len(layer.attention_recall) for layer in layers) + 1)
    names = ["layer", *(f"head {number}" for number in heads), "met", "alone"]
    rows = [element("tr", element("th", str(number)), *map(_bucket_cell, layer.attention_recall),
                    element("td", f"{sum(layer.mean_neighbors) / len(layer.mean_neighbors):,.1f}", class_="right"),
                    element("td", f"{sum(layer.isolated_fraction) / len(layer.isolated_fraction):.1%}", class_="right"))
            for number, layer in enumerate(layers, 1)]  # fmt: skip
    head = element("thead", element("tr", *(element("th", name) for name in names)))
    return element("div", element("table", head, element("tbody", *rows), class_="heat"), class_="table")


def _bucket_cell(fraction: float) -> Html:
    return element("td", f"{fraction:.0%}", class_="right", style=f"--heat: {90 * fraction:.0f}")
