"""One word in many sentences: where each occurrence lies among the others, under every layer of every model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...reports.charts import COLORS, Series, line_chart
from ...reports.html import Html, element, note, section, table
from ...reports.scatter import Marker, project_pca, scatter_panel

CONTEXT_CHARS = 48  # characters shown on each side of the word
MAX_LISTED = 24  # occurrences whose neighbours are written out
OTHER_SENSES = "other senses"


@dataclass(frozen=True)
class ContextSnippet:
    """An occurrence, its sentence cut short on both sides of the word."""

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
    """The vectors of all spots under one layer of one model, their neighbours, and how well senses are told apart."""

    model: str
    index: int
    last_index: int  # the number of the model's last layer
    vectors: NDArray[np.floating]
    neighbors: NDArray[np.int64]  # (spots, some)
    scores: Mapping[str, float]  # nearest, centroid; empty where no sense is known

    @property
    def name(self) -> str:
        if self.last_index == 0:
            return self.model
        return f"{self.model}, {'embeddings' if self.index == 0 else f'layer {self.index}'}"


def render_scatter(word: str, snippets: Sequence[ContextSnippet], layers: Sequence[LayerVectors]) -> Html:
    """A panel a layer, and below them the sentences nearest to some of the occurrences."""
    tones = assign_colors(snippets)
    panels = [
        scatter_panel(one.name, _panel_subtitle(one), project_pca(one.vectors), _build_markers(snippets, one, tones))
        for one in layers
    ]
    key = [
        element("span", _legend_dot(tone), f"{name} ({count:,})")
        for name, (tone, count) in _count_senses(snippets, tones).items()
    ]
    told = (
        f"Every dot is one sentence with “{word}”; panels show the two directions in which its vectors differ most. "
        "Point at a dot to read its sentence; the lines lead to the three most similar occurrences."
    )
    return section(f"{word} in context", note(told), element("div", *key, class_="legend"),
                   element("div", *panels, class_="panels"), _neighbor_table(snippets, layers))  # fmt: skip


def render_accuracies(scores_by_layer: Mapping[str, Mapping[str, float]], majority_accuracy: float, caption: str) -> Html:
    """`table_of`: by the name of a layer, its scores; `frequent` is what always the most frequent sense gets."""
    best = {kind: max(one[kind] for one in scores_by_layer.values()) for kind in ("nearest", "centroid")}
    shown = [(name, *(_accuracy_cell(one[kind], best[kind]) for kind in best)) for name, one in scores_by_layer.items()]
    base = ("always the most frequent sense", _format_percent(majority_accuracy), _format_percent(majority_accuracy))
    told = (
        f"Share of occurrences whose sense is found: by the most similar known occurrence, and by the nearest sense. {caption}"
    )
    return section("Senses told apart", note(told), table([*shown, base], ("", "nearest occurrence", "nearest sense")))


def render_by_layer(accuracies_by_model: Mapping[str, Sequence[float]], majority_accuracy: float) -> Html:
    """Accuracy of the nearest occurrence against layers, a line a model; nothing where no model has several."""
    series = [Series(name, [(float(n), 100 * value) for n, value in enumerate(values)], "dots")
              for name, values in accuracies_by_model.items() if len(values) > 1]  # fmt: skip
    if not series or len(series) > len(COLORS):
        return Html("")
    level = ("always the most frequent sense", 100 * majority_accuracy)
    drawn = line_chart("Senses found by the nearest occurrence, %", series, "layer (0: embeddings)", level)
    return section("By layer", drawn)


def render_word_table(
    words: Sequence[str], accuracies_by_model: Mapping[str, Mapping[str, float]], majority_accuracies: Mapping[str, float]
) -> Html:
    """Of many words, the accuracy of each under the chosen layers (columns) and of the most frequent sense."""
    rows = [
        (
            word,
            *(_format_percent(one[word]) for one in accuracies_by_model.values()),
            _format_percent(majority_accuracies[word]),
        )
        for word in words
    ]
    return section("Word by word", note("Nearest occurrence, each model by its best layer."),
                   table(rows, ("", *accuracies_by_model, "most frequent")))  # fmt: skip


def assign_colors(snippets: Sequence[ContextSnippet]) -> dict[str, str]:
    """A colour for each sense, the most frequent first; from the eighth on they share one."""
    known = [spot.sense or "" for spot in snippets]
    order = sorted(set(known), key=lambda sense: (-known.count(sense), sense))
    return {sense: COLORS[min(number, len(COLORS) - 1)] for number, sense in enumerate(order)}


def _count_senses(snippets: Sequence[ContextSnippet], colors: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    counts = {sense: sum((spot.sense or "") == sense for spot in snippets) for sense in colors}
    first, rest = list(counts)[: len(COLORS) - 1], list(counts)[len(COLORS) - 1 :]
    found = {sense or "not said": (colors[sense], counts[sense]) for sense in first}
    if rest:
        found[rest[0] if len(rest) == 1 else OTHER_SENSES] = (COLORS[-1], sum(counts[sense] for sense in rest))
    return found


def _build_markers(snippets: Sequence[ContextSnippet], layer: LayerVectors, colors: Mapping[str, str]) -> list[Marker]:
    return [Marker(colors[spot.sense or ""], _format_tooltip(snippets, number, layer), tuple(int(n) for n in layer.neighbors[number]))
            for number, spot in enumerate(snippets)]  # fmt: skip


def _format_tooltip(snippets: Sequence[ContextSnippet], index: int, layer: LayerVectors) -> str:
    near = [f"→ {_format_snippet(snippets[n])}" for n in layer.neighbors[index]]
    return "\n".join([_format_snippet(snippets[index]), *near])


def _format_snippet(snippet: ContextSnippet) -> str:
    return f"[{snippet.sense}] {snippet}" if snippet.sense else str(snippet)


def _panel_subtitle(layer: LayerVectors) -> str:
    return _format_percent(layer.scores["nearest"]) if layer.scores else ""


def _neighbor_table(snippets: Sequence[ContextSnippet], layers: Sequence[LayerVectors]) -> Html:
    """Under the layer that tells senses apart best (the last one given, where no sense is known)."""
    best = max(layers, key=lambda one: one.scores.get("nearest", 0.0) if one.scores else one.index)
    rows: list[tuple[str, ...]] = []
    for number in range(0, len(snippets), max(1, len(snippets) // MAX_LISTED)):
        for rank, other in enumerate((number, *(int(n) for n in best.neighbors[number]))):
            spot, mark = snippets[other], "•" if rank == 0 else f"{rank}"
            cells = (element("div", spot.before, class_="context"), spot.word, spot.after, spot.sense or "")
            rows.append((element("b", mark) if rank == 0 else mark, *cells))
    head = ("", "", "", "", "sense")
    return element("details", element("summary", f"Nearest neighbours, by {best.name}"), table(rows, head))


def _legend_dot(color: str) -> Html:
    return element("svg", element("circle", cx=14, cy=6, r=5, class_=f"dot {color}"), viewBox="0 0 28 12", aria_hidden="true")


def _accuracy_cell(accuracy: float, best: float) -> str:
    return element("b", _format_percent(accuracy), class_="best") if accuracy == best else _format_percent(accuracy)


def _format_percent(fraction: float) -> str:
    return f"{fraction:.1%}"
