"""Word queries of `bertsmith embed`: nearest neighbours, analogies and benchmark scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..console import Console, print_result
from ..errors import UserError
from . import KeyedVectors
from .benchmarks import AnalogyScores, evaluate_word_analogies, evaluate_word_pairs

ScoredWords = list[tuple[str, float]]


def run_queries(
    vectors: KeyedVectors, word: str | None, analogy: Sequence[str], similarity: Sequence[Path], analogies: Sequence[Path],
    topn: int, case_insensitive: bool, console: Console,
) -> dict[str, Any]:  # fmt: skip
    """Results of the requested queries; neighbours and analogies are also printed to stdout, one JSON object per line."""
    result: dict[str, Any] = {"words": len(vectors), "vector_size": vectors.vector_size}
    if analogy and len(analogy) != 3:
        raise UserError(f'analogy={list(analogy)} must be three words, such as \'["man", "king", "woman"]\'')
    if word is not None:
        result["neighbours"] = _print_words(vectors.most_similar(word, topn))
    if analogy:
        result["analogy"] = _print_words(vectors.analogy(analogy[0], analogy[1], analogy[2], topn=topn))
    if similarity:
        result["similarity"] = _report_similarity(vectors, similarity, case_insensitive, console)
    if analogies:
        result["analogies"] = {
            str(path): _report_analogies(evaluate_word_analogies(vectors, path, case_insensitive), path, console)
            for path in analogies
        }
    return result


def _print_words(scored_words: ScoredWords) -> list[dict[str, Any]]:
    rows = [{"word": word, "score": round(score, 6)} for word, score in scored_words]
    print_result(*(msgspec.json.encode(row).decode() for row in rows))
    return rows


def _report_similarity(
    vectors: KeyedVectors, paths: Sequence[Path], case_insensitive: bool, console: Console
) -> dict[str, Any]:
    scores = {str(path): evaluate_word_pairs(vectors, path, case_insensitive)._asdict() for path in paths}
    rows = [
        (Path(path).name, f"{score['spearman']:.4f}", f"{score['pairs']:,}", f"{score['coverage']:.1%}")
        for path, score in scores.items()
    ]
    console.print_table("word similarity", [("", "Spearman", "pairs", "covered"), *rows])
    return scores


def _report_analogies(scores: AnalogyScores, path: Path, console: Console) -> dict[str, Any]:
    sections = [*scores.sections, scores.total]
    rows = [
        (
            section.name,
            f"{section.accuracy:.2%}" if section.num_covered else "-",
            f"{section.num_covered:,}",
            f"{section.num_questions:,}",
        )
        for section in sections
    ]
    console.print_table(f"analogies: {path.name}", [("", "accuracy", "covered", "questions"), *rows])
    section_results = {
        section.name: {"accuracy": section.accuracy if section.num_covered else None, **_section_counts(section)}
        for section in scores.sections
    }
    total = scores.total
    return {
        "accuracy": total.accuracy if total.num_covered else None,
        "coverage": scores.coverage,
        **_section_counts(total),
        "sections": section_results,
    }


def _section_counts(section: Any) -> dict[str, int]:
    return {"questions": section.num_questions, "covered": section.num_covered, "correct": section.num_correct}
