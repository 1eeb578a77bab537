"""Charts and tables of word senses: PCA scatter plot per layer, accuracy by layer and by word, nearest neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...reports.charts import (
    COLORS,
    FULL_WIDTH,
    Chart,
    LegendEntry,
    Marker,
    Series,
    line_chart,
    project_pca,
    scatter_panel,
)
from ...reports.html import Section, render

CONTEXT_CHARS = 48  # characters shown on each side of the word
MAX_LISTED = 24  # occurrences whose neighbours are written out
OTHER_SENSES = "other senses"
MAJORITY_BASELINE = "majority baseline (most frequent sense)"


@dataclass(frozen=True)
class ContextSnippet:
    """An occurrence of a word with at most CONTEXT_CHARS characters on each side."""

    before: str
    word: str
    after: str
    sense: str | None

    @classmethod
    def from_text(cls, text: str, start: int, end: int, sense: str | None) -> "ContextSnippet":
        before, after = text[:start], text[end:]
        before = before if len(before) <= CONTEXT_CHARS else f"…{before[-CONTEXT_CHARS:]}"
        return cls(before, text[start:end], after if len(after) <= CONTEXT_CHARS else f"{after[:CONTEXT_CHARS]}…", sense)

    def __str__(self) -> str:
        return f"{self.before}{self.word}{self.after}"


@dataclass(frozen=True)
class LayerVectors:
    """Word vectors of all occurrences in one layer of one model, their nearest neighbours, and the accuracy on senses."""

    model: str
    index: int  # 0: embeddings
    last_index: int  # index of the model's last layer
    vectors: NDArray[np.floating]  # (occurrences, hidden size)
    neighbors: NDArray[np.int64]  # (occurrences, k)
    scores: Mapping[str, float]  # accuracies nearest_neighbor and nearest_centroid; empty where senses are unknown

    @property
    def name(self) -> str:
        if self.last_index == 0:
            return self.model
        return f"{self.model}, {'embeddings' if self.index == 0 else f'layer {self.index}'}"


def render_scatter(word: str, snippets: Sequence[ContextSnippet], layers: Sequence[LayerVectors]) -> Section:
    """A scatter plot per layer, and below them the nearest neighbours of some occurrences."""
    colors = assign_colors(snippets)
    panels = [
        scatter_panel(layer.name, _panel_subtitle(layer), project_pca(layer.vectors), _build_markers(snippets, layer, colors))
        for layer in layers
    ]
    legend = [(color, f"{name} ({count:,})") for name, (color, count) in _count_senses(snippets, colors).items()]
    caption = (
        f"Each dot is the vector of “{word}” in one sentence, projected onto the first two principal components. "
        "Hover over a dot to read its sentence; lines connect it with its three nearest neighbours."
    )
    # If senses are unknown, the last layer.
    best = max(layers, key=lambda layer: layer.scores.get("nearest_neighbor", 0.0) if layer.scores else layer.index)
    body = render("word_senses", "in_context", caption=caption, legend=legend, panels=panels,
                  neighbors_title=f"Nearest neighbours in {best.name}", neighbors=_neighbor_rows(snippets, best))  # fmt: skip
    key = Chart(
        f"Senses of {word}", [], FULL_WIDTH, 0, legend=[LegendEntry(name, None, f"dot {color}") for color, name in legend]
    )
    return Section(f"{word} in context", body, (key, *panels))


def render_accuracies(scores_by_layer: Mapping[str, Mapping[str, float]], majority_accuracy: float, caption: str) -> Section:
    """Accuracies by name of layer; `majority_accuracy` is that of always predicting the most frequent sense."""
    best = {kind: max(scores[kind] for scores in scores_by_layer.values()) for kind in ("nearest_neighbor", "nearest_centroid")}
    rows = [
        (name, [(_format_percent(scores[kind]), scores[kind] == best[kind]) for kind in best])
        for name, scores in scores_by_layer.items()
    ]
    rows.append((MAJORITY_BASELINE, [(_format_percent(majority_accuracy), False)] * len(best)))
    explanation = (
        "Accuracy of predicting the sense of an occurrence from its nearest labeled neighbour (1-NN) or from the nearest "
        f"sense centroid. {caption}"
    )
    return Section("Word sense disambiguation", render("word_senses", "accuracies", caption=explanation, rows=rows))


def render_by_layer(accuracies_by_model: Mapping[str, Sequence[float]], majority_accuracy: float) -> Section | None:
    """Nearest-neighbour accuracy by layer, one line per model; None where no model has several layers."""
    series = [Series(name, [(float(layer), 100 * value) for layer, value in enumerate(values)], "dots")
              for name, values in accuracies_by_model.items() if len(values) > 1]  # fmt: skip
    if not series or len(series) > len(COLORS):
        return None
    reference = (MAJORITY_BASELINE, 100 * majority_accuracy)
    chart = line_chart("1-NN accuracy (%)", series, "layer (0 is the embeddings)", reference)
    return Section("Accuracy by layer", render("word_senses", "by_layer", chart=chart), (chart,))


def render_word_table(
    words: Sequence[str], accuracies_by_model: Mapping[str, Mapping[str, float]], majority_accuracies: Mapping[str, float]
) -> Section:
    """Accuracy of each word (rows) with the best layer of each model (columns), and of the majority baseline."""
    rows = [
        (
            word,
            *(_format_percent(accuracies[word]) for accuracies in accuracies_by_model.values()),
            _format_percent(majority_accuracies[word]),
        )
        for word in words
    ]
    caption = "1-NN accuracy with the best layer of each model."
    header = ("word", *accuracies_by_model, "majority baseline")
    return Section("Accuracy by word", render("word_senses", "by_word", caption=caption, rows=rows, header=header))


def assign_colors(snippets: Sequence[ContextSnippet]) -> dict[str, str]:
    """A color for each sense, the most frequent first; the eighth and all later ones share a color."""
    senses = [snippet.sense or "" for snippet in snippets]
    order = sorted(set(senses), key=lambda sense: (-senses.count(sense), sense))
    return {sense: COLORS[min(i, len(COLORS) - 1)] for i, sense in enumerate(order)}


def _count_senses(snippets: Sequence[ContextSnippet], colors: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """(color, count) of each sense by its name in the legend."""
    counts = {sense: sum((snippet.sense or "") == sense for snippet in snippets) for sense in colors}
    first, rest = list(counts)[: len(COLORS) - 1], list(counts)[len(COLORS) - 1 :]
    legend = {sense or "unknown": (colors[sense], counts[sense]) for sense in first}
    if rest:
        legend[rest[0] if len(rest) == 1 else OTHER_SENSES] = (COLORS[-1], sum(counts[sense] for sense in rest))
    return legend


def _build_markers(snippets: Sequence[ContextSnippet], layer: LayerVectors, colors: Mapping[str, str]) -> list[Marker]:
    markers = []
    for i, snippet in enumerate(snippets):
        neighbors = tuple(int(n) for n in layer.neighbors[i])
        markers.append(Marker(colors[snippet.sense or ""], _format_tooltip(snippets, i, layer), neighbors))
    return markers


def _format_tooltip(snippets: Sequence[ContextSnippet], index: int, layer: LayerVectors) -> str:
    neighbors = [f"→ {_format_snippet(snippets[n])}" for n in layer.neighbors[index]]
    return "\n".join([_format_snippet(snippets[index]), *neighbors])


def _format_snippet(snippet: ContextSnippet) -> str:
    return f"[{snippet.sense}] {snippet}" if snippet.sense else str(snippet)


def _panel_subtitle(layer: LayerVectors) -> str:
    return _format_percent(layer.scores["nearest_neighbor"]) if layer.scores else ""


def _neighbor_rows(snippets: Sequence[ContextSnippet], layer: LayerVectors) -> list[tuple[int, str, str, str, str]]:
    """(rank, before, word, after, sense) of some occurrences, rank 0, each with its nearest neighbours below it."""
    rows = []
    for index in range(0, len(snippets), max(1, len(snippets) // MAX_LISTED)):
        for rank, other in enumerate((index, *(int(n) for n in layer.neighbors[index]))):
            snippet = snippets[other]
            rows.append((rank, snippet.before, snippet.word, snippet.after, snippet.sense or ""))
    return rows


def _format_percent(fraction: float) -> str:
    return f"{fraction:.1%}"
