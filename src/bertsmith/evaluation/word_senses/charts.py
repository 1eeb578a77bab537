"""One word in many sentences: where each occurrence lies among the others, under every layer of every model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...reports.charts import TONES, Series, lines
from ...reports.html import Html, element, note, section, table
from ...reports.scatter import Mark, cloud, flattened

AROUND = 48  # characters shown on each side of the word
LISTED = 24  # occurrences whose neighbours are written out
FEW = "other senses"


@dataclass(frozen=True)
class Spot:
    """An occurrence, its sentence cut short on both sides of the word."""

    before: str
    word: str
    after: str
    sense: str | None

    @classmethod
    def of(cls, text: str, start: int, end: int, sense: str | None) -> "Spot":
        before, after = text[:start], text[end:]
        before = before if len(before) <= AROUND else f"…{before[-AROUND:]}"
        return cls(before, text[start:end], after if len(after) <= AROUND else f"{after[:AROUND]}…", sense)

    def __str__(self) -> str:
        return f"{self.before}{self.word}{self.after}"


@dataclass(frozen=True)
class Layer:
    """The vectors of all spots under one layer of one model, their neighbours, and how well senses are told apart."""

    model: str
    number: int
    last: int  # the number of the model's last layer
    vectors: NDArray[np.floating]
    near: NDArray[np.int64]  # (spots, some)
    scores: Mapping[str, float]  # nearest, centroid; empty where no sense is known

    @property
    def name(self) -> str:
        if self.last == 0:
            return self.model
        return f"{self.model}, {'embeddings' if self.number == 0 else f'layer {self.number}'}"


def picture(word: str, spots: Sequence[Spot], layers: Sequence[Layer]) -> Html:
    """A panel a layer, and below them the sentences nearest to some of the occurrences."""
    tones = toned(spots)
    panels = [cloud(one.name, _words(one), flattened(one.vectors), _marks(spots, one, tones)) for one in layers]
    key = [element("span", _dot(tone), f"{name} ({count:,})") for name, (tone, count) in _counted(spots, tones).items()]
    told = (
        f"Every dot is one sentence with “{word}”; panels show the two directions in which its vectors differ most. "
        "Point at a dot to read its sentence; the lines lead to the three most similar occurrences."
    )
    return section(f"{word} in context", note(told), element("div", *key, class_="legend"),
                   element("div", *panels, class_="panels"), _neighbours(spots, layers))  # fmt: skip


def accuracies(table_of: Mapping[str, Mapping[str, float]], frequent: float, about: str) -> Html:
    """`table_of`: by the name of a layer, its scores; `frequent` is what always the most frequent sense gets."""
    best = {kind: max(one[kind] for one in table_of.values()) for kind in ("nearest", "centroid")}
    shown = [(name, *(_cell(one[kind], best[kind]) for kind in best)) for name, one in table_of.items()]
    base = ("always the most frequent sense", _percent(frequent), _percent(frequent))
    told = f"Share of occurrences whose sense is found: by the most similar known occurrence, and by the nearest sense. {about}"
    return section("Senses told apart", note(told), table([*shown, base], ("", "nearest occurrence", "nearest sense")))


def by_layer(found: Mapping[str, Sequence[float]], frequent: float) -> Html:
    """Accuracy of the nearest occurrence against layers, a line a model; nothing where no model has several."""
    series = [Series(name, [(float(n), 100 * value) for n, value in enumerate(values)], "dots")
              for name, values in found.items() if len(values) > 1]  # fmt: skip
    if not series or len(series) > len(TONES):
        return Html("")
    level = ("always the most frequent sense", 100 * frequent)
    drawn = lines("Senses found by the nearest occurrence, %", series, "layer (0: embeddings)", level)
    return section("By layer", drawn)


def words_table(words: Sequence[str], found: Mapping[str, Mapping[str, float]], frequent: Mapping[str, float]) -> Html:
    """Of many words, the accuracy of each under the chosen layers (columns) and of the most frequent sense."""
    rows = [(word, *(_percent(one[word]) for one in found.values()), _percent(frequent[word])) for word in words]
    return section("Word by word", note("Nearest occurrence, each model by its best layer."),
                   table(rows, ("", *found, "most frequent")))  # fmt: skip


def toned(spots: Sequence[Spot]) -> dict[str, str]:
    """A colour for each sense, the most frequent first; from the eighth on they share one."""
    known = [spot.sense or "" for spot in spots]
    order = sorted(set(known), key=lambda sense: (-known.count(sense), sense))
    return {sense: TONES[min(number, len(TONES) - 1)] for number, sense in enumerate(order)}


def _counted(spots: Sequence[Spot], tones: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    counts = {sense: sum((spot.sense or "") == sense for spot in spots) for sense in tones}
    first, rest = list(counts)[: len(TONES) - 1], list(counts)[len(TONES) - 1 :]
    found = {sense or "not said": (tones[sense], counts[sense]) for sense in first}
    if rest:
        found[rest[0] if len(rest) == 1 else FEW] = (TONES[-1], sum(counts[sense] for sense in rest))
    return found


def _marks(spots: Sequence[Spot], layer: Layer, tones: Mapping[str, str]) -> list[Mark]:
    return [Mark(tones[spot.sense or ""], _said(spots, number, layer), tuple(int(n) for n in layer.near[number]))
            for number, spot in enumerate(spots)]  # fmt: skip


def _said(spots: Sequence[Spot], number: int, layer: Layer) -> str:
    near = [f"→ {_tagged(spots[n])}" for n in layer.near[number]]
    return "\n".join([_tagged(spots[number]), *near])


def _tagged(spot: Spot) -> str:
    return f"[{spot.sense}] {spot}" if spot.sense else str(spot)


def _words(layer: Layer) -> str:
    return _percent(layer.scores["nearest"]) if layer.scores else ""


def _neighbours(spots: Sequence[Spot], layers: Sequence[Layer]) -> Html:
    """Under the layer that tells senses apart best (the last one given, where no sense is known)."""
    best = max(layers, key=lambda one: one.scores.get("nearest", 0.0) if one.scores else one.number)
    rows: list[tuple[str, ...]] = []
    for number in range(0, len(spots), max(1, len(spots) // LISTED)):
        for rank, other in enumerate((number, *(int(n) for n in best.near[number]))):
            spot, mark = spots[other], "•" if rank == 0 else f"{rank}"
            cells = (element("div", spot.before, class_="context"), spot.word, spot.after, spot.sense or "")
            rows.append((element("b", mark) if rank == 0 else mark, *cells))
    head = ("", "", "", "", "sense")
    return element("details", element("summary", f"Nearest neighbours, by {best.name}"), table(rows, head))


def _dot(tone: str) -> Html:
    return element("svg", element("circle", cx=14, cy=6, r=5, class_=f"dot {tone}"), viewBox="0 0 28 12", aria_hidden="true")


def _cell(share: float, best: float) -> str:
    return element("b", _percent(share), class_="best") if share == best else _percent(share)


def _percent(share: float) -> str:
    return f"{share:.1%}"
