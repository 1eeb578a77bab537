"""One word in many sentences under several models: their vectors, how well they tell senses apart, and the page of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ...artifacts import named
from ...console import Screen
from ...errors import BadInput
from ...inference.predictor import Predictor, load
from ...reports.html import Html
from .charts import Layer, Spot, accuracies, by_layer, picture, words_table
from .occurrences import Occurrence, Sentences, read
from .vectors import Floats, Scores, in_context, neighbours, scored

NEAR = 3  # neighbours shown


@dataclass(frozen=True)
class Seen:
    """One word under all layers of one model; scores are None where too few senses are known."""

    model: str
    word: Sentences
    scores: list[Scores | None]
    drawn: list[Layer]


def page(
    models: Sequence[str], data: str, word: str | None, points: int, skip_bad: bool, screen: Screen
) -> tuple[str, list[Html], dict[str, Any]]:
    """Title, sections and what was scored. Of one word there is a picture; of many only the tables."""
    faults = list[BadInput]()
    words = read(named(data, "data"), word, faults.append if skip_bad else None)
    if faults:
        screen.warn(f"{len(faults):,} row{'s' * (len(faults) > 1)} left out; the first: {faults[0]}")
    names = _names(models)
    seen = [one for name, place in names.items() for one in _seen(name, load(place), words, points, screen)]
    table = _table(seen)
    sections = _scores(seen, table, words)
    if len(words) == 1:
        spots = [Spot.of(one.text, one.start, one.end, one.sense) for one in _chosen(words[0].shown, points)]
        sections += [picture(words[0].word, spots, [layer for one in seen for layer in one.drawn])]
    title = f"Senses of {words[0].word}" if len(words) == 1 else f"Senses of {len(words)} words"
    return title, sections, {"scores": table, "words": [one.word for one in words]}


def _names(models: Sequence[str]) -> dict[str, str]:
    """By the name of the folder; of folders with one name, by the whole path."""
    places = {place: Path(place).name for place in dict.fromkeys(models)}
    if not places:
        raise BadInput("show senses needs model=FOLDER, or models='[\"FOLDER\", ...]'")
    every = list(places.values())
    return {name if every.count(name) == 1 else place: place for place, name in places.items()}


def _seen(name: str, predictor: Predictor, words: Sequence[Sentences], points: int, screen: Screen) -> list[Seen]:
    found = []
    with screen.bar(name) as bar:
        for number, word in enumerate(words, start=1):
            learn = in_context(predictor, word.learn)
            judge = in_context(predictor, word.judge) if word.judge else [None] * len(learn)
            scores = [_scored(word, *pair) for pair in zip(learn, judge, strict=True)]
            drawn = _drawn(name, word, [b if b is not None else a for a, b in zip(learn, judge, strict=True)], scores, points)
            found.append(Seen(name, word, scores, drawn if len(words) == 1 else []))
            bar(number, len(words))
    return found


def _scored(word: Sentences, learn: Floats, judge: Floats | None) -> Scores | None:
    known = [i for i, one in enumerate(word.learn) if one.sense is not None]
    senses = [str(word.learn[i].sense) for i in known]
    if len(known) < 2 or len(set(senses)) < 2:
        return None
    if judge is None:
        return scored(learn[known], senses)
    asked = [i for i, one in enumerate(word.judge) if one.sense is not None]
    return scored(learn[known], senses, judge[asked], [str(word.judge[i].sense) for i in asked]) if asked else None


def _drawn(name: str, word: Sentences, vectors: list[Floats], scores: list[Scores | None], points: int) -> list[Layer]:
    rows = _rows(len(word.shown), points)
    return [
        Layer(name, number, len(vectors) - 1, some[rows], neighbours(some[rows], NEAR),
              {"nearest": told.nearest, "centroid": told.centroid} if told else {})
        for number, (some, told) in enumerate(zip(vectors, scores, strict=True))
    ]  # fmt: skip


def _rows(count: int, points: int) -> list[int]:
    """So many of them, evenly: files often list one sense after another."""
    return np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(int)).tolist()


def _chosen(occurrences: Sequence[Occurrence], points: int) -> list[Occurrence]:
    return [occurrences[i] for i in _rows(len(occurrences), points)]


def _table(seen: Sequence[Seen]) -> dict[str, Any]:
    """By model and layer: the mean over words, and each word."""
    told: dict[str, Any] = {}
    for model in dict.fromkeys(one.model for one in seen):
        mine = [one for one in seen if one.model == model]
        told[model] = [_layer(mine, number) for number in range(len(mine[0].scores))]
    return told


def _layer(mine: Sequence[Seen], number: int) -> dict[str, Any]:
    known = {one.word.word: score for one in mine if (score := one.scores[number]) is not None}
    if not known:
        return {"layer": number}
    means = {name: fmean(getattr(score, name) for score in known.values()) for name in ("nearest", "centroid", "frequent")}
    each = {word: {"nearest": s.nearest, "centroid": s.centroid, "frequent": s.frequent, "judged": s.judged}
            for word, s in known.items()}  # fmt: skip
    return {"layer": number, **means, "words": each}


def _scores(seen: Sequence[Seen], table: dict[str, Any], words: Sequence[Sentences]) -> list[Html]:
    rows = [(model, layer, len(layers)) for model, layers in table.items() for layer in layers if "nearest" in layer]
    if not rows:
        return []
    frequent = rows[0][1]["frequent"]
    shown = {_named(model, layer["layer"], count): layer for model, layer, count in rows}
    judged = sum(one["judged"] for one in rows[0][1]["words"].values())
    how = "of sentences apart from those known" if words[0].judge else "each by all the others"
    about = f"{judged:,} occurrences, {how}" + (f"; the mean over {len(words)} words." if len(words) > 1 else ".")
    sections = [accuracies(shown, frequent, about)]
    curves = by_layer(
        {model: [one["nearest"] for one in layers if "nearest" in one] for model, layers in table.items()}, frequent
    )
    sections += [curves] if curves else []
    return sections + ([_each_word(table)] if len(words) > 1 else [])


def _each_word(table: dict[str, Any]) -> Html:
    """Every word under the best layer of every model."""
    best = {model: max((one for one in layers if "nearest" in one), key=lambda one: one["nearest"], default=None)
            for model, layers in table.items()}  # fmt: skip
    found = {_named(model, one["layer"], len(table[model])): {word: s["nearest"] for word, s in one["words"].items()}
             for model, one in best.items() if one}  # fmt: skip
    frequent = next({word: s["frequent"] for word, s in one["words"].items()} for one in best.values() if one)
    return words_table(list(frequent), found, frequent)


def _named(model: str, layer: int, layers: int) -> str:
    return model if layers == 1 else f"{model}, {'embeddings' if layer == 0 else f'layer {layer}'}"
