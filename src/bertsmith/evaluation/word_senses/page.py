"""`bertsmith show senses`: evaluates models on word senses, layer by layer, and renders the page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ...artifacts import resolve_path
from ...console import Console
from ...errors import UserError
from ...inference.predictor import Predictor, load
from ...reports.html import Section
from .charts import ContextSnippet, LayerVectors, render_accuracies, render_by_layer, render_scatter, render_word_table
from .occurrences import Occurrence, WordOccurrences, read_occurrences
from .vectors import Floats, SenseScores, compute_word_vectors, nearest_neighbors, score_senses

NUM_NEIGHBORS = 3  # neighbours shown per occurrence
ACCURACIES = ("nearest_neighbor", "nearest_centroid", "majority_baseline")  # of a layer, as in `SenseScores`


@dataclass(frozen=True)
class WordResult:
    """One word evaluated with all layers of one model; a score is None where fewer than two senses are known."""

    model: str
    word: WordOccurrences
    scores: list[SenseScores | None]
    layers: list[LayerVectors]


def render_page(
    models: Sequence[str], data: str, word: str | None, max_points: int, skip_bad: bool, console: Console
) -> tuple[str, list[Section], dict[str, Any]]:
    """(title, sections, result); scatter plots are drawn for a single word only."""
    bad_rows = list[UserError]()
    words = read_occurrences(resolve_path(data, "data"), word, bad_rows.append if skip_bad else None)
    if bad_rows:
        console.warn(f"skipped {len(bad_rows):,} row{'s' * (len(bad_rows) > 1)}; the first: {bad_rows[0]}")
    names = _model_names(models)
    results = [
        result for name, folder in names.items() for result in _evaluate_words(name, load(folder), words, max_points, console)
    ]
    table = _score_table(results)
    sections = _score_sections(results, table, words)
    if len(words) == 1:
        snippets = [
            ContextSnippet.from_text(occurrence.text, occurrence.start, occurrence.end, occurrence.sense)
            for occurrence in _sample_occurrences(words[0].displayed, max_points)
        ]
        layers = [layer for result in results for layer in result.layers]
        sections += [render_scatter(words[0].word, snippets, layers)]
    title = f"Senses of {words[0].word}" if len(words) == 1 else f"Senses of {len(words)} words"
    return title, sections, {"scores": table, "words": [word_occurrences.word for word_occurrences in words]}


def _model_names(models: Sequence[str]) -> dict[str, str]:
    """Path by display name: the name of the folder, or the whole path where names repeat."""
    names_by_path = {path: Path(path).name for path in dict.fromkeys(models)}
    if not names_by_path:
        raise UserError("show senses needs model=FOLDER or models=FOLDER,FOLDER")
    all_names = list(names_by_path.values())
    return {name if all_names.count(name) == 1 else path: path for path, name in names_by_path.items()}


def _evaluate_words(
    name: str, predictor: Predictor, words: Sequence[WordOccurrences], max_points: int, console: Console
) -> list[WordResult]:
    results = []
    with console.progress_bar(name) as bar:
        for num_done, word in enumerate(words, start=1):
            train_vectors = compute_word_vectors(predictor, word.train)
            test_vectors = compute_word_vectors(predictor, word.test) if word.test else [None] * len(train_vectors)
            scores = [_score_layer(word, *pair) for pair in zip(train_vectors, test_vectors, strict=True)]
            displayed = [test if test is not None else train for train, test in zip(train_vectors, test_vectors, strict=True)]
            layers = _build_layers(name, word, displayed, scores, max_points)
            results.append(WordResult(name, word, scores, layers if len(words) == 1 else []))
            bar(num_done, len(words))
    return results


def _score_layer(word: WordOccurrences, train_vectors: Floats, test_vectors: Floats | None) -> SenseScores | None:
    train_indices = [i for i, occurrence in enumerate(word.train) if occurrence.sense is not None]
    senses = [str(word.train[i].sense) for i in train_indices]
    if len(train_indices) < 2 or len(set(senses)) < 2:
        return None
    if test_vectors is None:
        return score_senses(train_vectors[train_indices], senses)
    test_indices = [i for i, occurrence in enumerate(word.test) if occurrence.sense is not None]
    test_senses = [str(word.test[i].sense) for i in test_indices]
    return score_senses(train_vectors[train_indices], senses, test_vectors[test_indices], test_senses) if test_indices else None


def _build_layers(
    name: str, word: WordOccurrences, vectors: list[Floats], scores: list[SenseScores | None], max_points: int
) -> list[LayerVectors]:
    rows = _sample_rows(len(word.displayed), max_points)
    return [
        LayerVectors(name, index, len(vectors) - 1, layer[rows], nearest_neighbors(layer[rows], NUM_NEIGHBORS),
                     {"nearest_neighbor": score.nearest_neighbor, "nearest_centroid": score.nearest_centroid} if score else {})
        for index, (layer, score) in enumerate(zip(vectors, scores, strict=True))
    ]  # fmt: skip


def _sample_rows(count: int, max_points: int) -> list[int]:
    """At most `max_points` evenly spaced indices, since files are often sorted by sense."""
    return np.unique(np.linspace(0, count - 1, min(count, max_points)).round().astype(int)).tolist()


def _sample_occurrences(occurrences: Sequence[Occurrence], max_points: int) -> list[Occurrence]:
    return [occurrences[i] for i in _sample_rows(len(occurrences), max_points)]


def _score_table(results: Sequence[WordResult]) -> dict[str, Any]:
    """By model, a list over layers: mean accuracies over words, and those of each word."""
    table: dict[str, Any] = {}
    for model in dict.fromkeys(result.model for result in results):
        model_results = [result for result in results if result.model == model]
        table[model] = [_layer_scores(model_results, layer) for layer in range(len(model_results[0].scores))]
    return table


def _layer_scores(results: Sequence[WordResult], layer: int) -> dict[str, Any]:
    scores = {result.word.word: score for result in results if (score := result.scores[layer]) is not None}
    if not scores:
        return {"layer": layer}
    means = {name: fmean(getattr(score, name) for score in scores.values()) for name in ACCURACIES}
    by_word = {word: asdict(score) for word, score in scores.items()}
    return {"layer": layer, **means, "words": by_word}


def _score_sections(results: Sequence[WordResult], table: dict[str, Any], words: Sequence[WordOccurrences]) -> list[Section]:
    rows = [(model, layer, len(layers)) for model, layers in table.items() for layer in layers if "nearest_neighbor" in layer]
    if not rows:
        return []
    majority_accuracy = rows[0][1]["majority_baseline"]
    shown = {_layer_name(model, layer["layer"], count): layer for model, layer, count in rows}
    num_evaluated = sum(word_scores["num_evaluated"] for word_scores in rows[0][1]["words"].values())
    protocol = "of a separate test set" if words[0].test else "evaluated by leave-one-out"
    caption = f"{num_evaluated:,} occurrences {protocol}" + (f"; mean over {len(words)} words." if len(words) > 1 else ".")
    sections = [render_accuracies(shown, majority_accuracy, caption)]
    accuracies = {
        model: [layer["nearest_neighbor"] for layer in layers if "nearest_neighbor" in layer] for model, layers in table.items()
    }
    curves = render_by_layer(accuracies, majority_accuracy)
    sections += [curves] if curves else []
    return sections + ([_word_section(table)] if len(words) > 1 else [])


def _word_section(table: dict[str, Any]) -> Section:
    """Accuracy of every word with the best layer of every model."""
    best = {
        model: max(
            (layer for layer in layers if "nearest_neighbor" in layer),
            key=lambda layer: layer["nearest_neighbor"],
            default=None,
        )
        for model, layers in table.items()
    }
    accuracies = {
        _layer_name(model, layer["layer"], len(table[model])): {
            word: s["nearest_neighbor"] for word, s in layer["words"].items()
        }
        for model, layer in best.items()
        if layer
    }
    majority_accuracies = next(
        {word: s["majority_baseline"] for word, s in layer["words"].items()} for layer in best.values() if layer
    )
    return render_word_table(list(majority_accuracies), accuracies, majority_accuracies)


def _layer_name(model: str, layer: int, num_layers: int) -> str:
    return model if num_layers == 1 else f"{model}, {'embeddings' if layer == 0 else f'layer {layer}'}"
