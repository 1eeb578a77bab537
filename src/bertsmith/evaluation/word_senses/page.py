"""One word in many sentences under several models: their vectors, how well they tell senses apart, and the page of both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ...artifacts import resolve_path
from ...console import Console
from ...errors import UserError
from ...inference.predictor import Predictor, load
from ...reports.html import Html
from .charts import ContextSnippet, LayerVectors, render_accuracies, render_by_layer, render_scatter, render_word_table
from .occurrences import Occurrence, WordOccurrences, read_occurrences
from .vectors import Floats, SenseScores, compute_word_vectors, nearest_neighbors, score_senses

NUM_NEIGHBORS = 3  # neighbours shown


@dataclass(frozen=True)
class WordResult:
    """One word under all layers of one model; scores are None where too few senses are known."""

    model: str
    word: WordOccurrences
    scores: list[SenseScores | None]
    layers: list[LayerVectors]


def render_page(
    models: Sequence[str], data: str, word: str | None, max_points: int, skip_bad: bool, console: Console
) -> tuple[str, list[Html], dict[str, Any]]:
    """Title, sections and what was scored. Of one word there is a picture; of many only the tables."""
    faults = list[UserError]()
    words = read_occurrences(resolve_path(data, "data"), word, faults.append if skip_bad else None)
    if faults:
        console.warn(f"{len(faults):,} row{'s' * (len(faults) > 1)} left out; the first: {faults[0]}")
    names = _model_names(models)
    seen = [one for name, place in names.items() for one in _evaluate_words(name, load(place), words, max_points, console)]
    table = _score_table(seen)
    sections = _score_sections(seen, table, words)
    if len(words) == 1:
        spots = [
            ContextSnippet.from_text(one.text, one.start, one.end, one.sense)
            for one in _sample_occurrences(words[0].displayed, max_points)
        ]
        sections += [render_scatter(words[0].word, spots, [layer for one in seen for layer in one.layers])]
    title = f"Senses of {words[0].word}" if len(words) == 1 else f"Senses of {len(words)} words"
    return title, sections, {"scores": table, "words": [one.word for one in words]}


def _model_names(models: Sequence[str]) -> dict[str, str]:
    """By the name of the folder; of folders with one name, by the whole path."""
    places = {place: Path(place).name for place in dict.fromkeys(models)}
    if not places:
        raise UserError("show senses needs model=FOLDER, or models='[\"FOLDER\", ...]'")
    every = list(places.values())
    return {name if every.count(name) == 1 else place: place for place, name in places.items()}


def _evaluate_words(
    name: str, predictor: Predictor, words: Sequence[WordOccurrences], max_points: int, console: Console
) -> list[WordResult]:
    found = []
    with console.progress_bar(name) as bar:
        for number, word in enumerate(words, start=1):
            learn = compute_word_vectors(predictor, word.train)
            judge = compute_word_vectors(predictor, word.test) if word.test else [None] * len(learn)
            scores = [_score_layer(word, *pair) for pair in zip(learn, judge, strict=True)]
            drawn = _build_layers(
                name, word, [b if b is not None else a for a, b in zip(learn, judge, strict=True)], scores, max_points
            )
            found.append(WordResult(name, word, scores, drawn if len(words) == 1 else []))
            bar(number, len(words))
    return found


def _score_layer(word: WordOccurrences, train_vectors: Floats, test_vectors: Floats | None) -> SenseScores | None:
    known = [i for i, one in enumerate(word.train) if one.sense is not None]
    senses = [str(word.train[i].sense) for i in known]
    if len(known) < 2 or len(set(senses)) < 2:
        return None
    if test_vectors is None:
        return score_senses(train_vectors[known], senses)
    asked = [i for i, one in enumerate(word.test) if one.sense is not None]
    return (
        score_senses(train_vectors[known], senses, test_vectors[asked], [str(word.test[i].sense) for i in asked])
        if asked
        else None
    )


def _build_layers(
    name: str, word: WordOccurrences, vectors: list[Floats], scores: list[SenseScores | None], max_points: int
) -> list[LayerVectors]:
    rows = _sample_rows(len(word.displayed), max_points)
    return [
        LayerVectors(name, number, len(vectors) - 1, some[rows], nearest_neighbors(some[rows], NUM_NEIGHBORS),
              {"nearest": told.nearest, "centroid": told.centroid} if told else {})
        for number, (some, told) in enumerate(zip(vectors, scores, strict=True))
    ]  # fmt: skip


def _sample_rows(count: int, max_points: int) -> list[int]:
    """So many of them, evenly: files often list one sense after another."""
    return np.unique(np.linspace(0, count - 1, min(count, max_points)).round().astype(int)).tolist()


def _sample_occurrences(occurrences: Sequence[Occurrence], max_points: int) -> list[Occurrence]:
    return [occurrences[i] for i in _sample_rows(len(occurrences), max_points)]


def _score_table(results: Sequence[WordResult]) -> dict[str, Any]:
    """By model and layer: the mean over words, and each word."""
    told: dict[str, Any] = {}
    for model in dict.fromkeys(one.model for one in results):
        mine = [one for one in results if one.model == model]
        told[model] = [_layer_scores(mine, number) for number in range(len(mine[0].scores))]
    return told


def _layer_scores(results: Sequence[WordResult], layer: int) -> dict[str, Any]:
    known = {one.word.word: score for one in results if (score := one.scores[layer]) is not None}
    if not known:
        return {"layer": layer}
    means = {name: fmean(getattr(score, name) for score in known.values()) for name in ("nearest", "centroid", "frequent")}
    each = {word: {"nearest": s.nearest, "centroid": s.centroid, "frequent": s.frequent, "judged": s.num_evaluated}
            for word, s in known.items()}  # fmt: skip
    return {"layer": layer, **means, "words": each}


def _score_sections(results: Sequence[WordResult], table: dict[str, Any], words: Sequence[WordOccurrences]) -> list[Html]:
    rows = [(model, layer, len(layers)) for model, layers in table.items() for layer in layers if "nearest" in layer]
    if not rows:
        return []
    frequent = rows[0][1]["frequent"]
    shown = {_layer_name(model, layer["layer"], count): layer for model, layer, count in rows}
    judged = sum(one["judged"] for one in rows[0][1]["words"].values())
    how = "of sentences apart from those known" if words[0].test else "each by all the others"
    about = f"{judged:,} occurrences, {how}" + (f"; the mean over {len(words)} words." if len(words) > 1 else ".")
    sections = [render_accuracies(shown, frequent, about)]
    curves = render_by_layer(
        {model: [one["nearest"] for one in layers if "nearest" in one] for model, layers in table.items()}, frequent
    )
    sections += [curves] if curves else []
    return sections + ([_word_section(table)] if len(words) > 1 else [])


def _word_section(table: dict[str, Any]) -> Html:
    """Every word under the best layer of every model."""
    best = {model: max((one for one in layers if "nearest" in one), key=lambda one: one["nearest"], default=None)
            for model, layers in table.items()}  # fmt: skip
    found = {_layer_name(model, one["layer"], len(table[model])): {word: s["nearest"] for word, s in one["words"].items()}
             for model, one in best.items() if one}  # fmt: skip
    frequent = next({word: s["frequent"] for word, s in one["words"].items()} for one in best.values() if one)
    return render_word_table(list(frequent), found, frequent)


def _layer_name(model: str, layer: int, layers: int) -> str:
    return model if layers == 1 else f"{model}, {'embeddings' if layer == 0 else f'layer {layer}'}"
