"""What vectors of words say: the neighbours of a word, an analogy, and scores on the files people are asked by."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..console import Console
from ..errors import UserError
from . import KeyedVectors
from .benchmarks import AnalogyScores, evaluate_word_analogies, evaluate_word_pairs

ScoredWords = list[tuple[str, float]]


def run_queries(
    vectors: KeyedVectors, word: str | None, analogy: Sequence[str], similarity: Sequence[Path], analogies: Sequence[Path],
    topn: int, case_insensitive: bool, console: Console,
) -> dict[str, Any]:  # fmt: skip
    """Everything that was asked for; neighbours and analogies also go to stdout, one JSON a line."""
    result: dict[str, Any] = {"words": len(vectors), "width": vectors.vector_size}
    if analogy and len(analogy) != 3:
        raise UserError(f'analogy={list(analogy)} is not three words: \'["man", "king", "woman"]\'')
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
    sys.stdout.writelines(msgspec.json.encode(row).decode() + "\n" for row in rows)
    return rows


def _report_similarity(
    vectors: KeyedVectors, paths: Sequence[Path], case_insensitive: bool, console: Console
) -> dict[str, Any]:
    scores = {str(path): evaluate_word_pairs(vectors, path, case_insensitive)._asdict() for path in paths}
    rows = [(Path(path).name, f"{s['spearman']:.4f}", f"{s['pairs']:,}", f"{s['coverage']:.1%}") for path, s in scores.items()]
    console.print_table("likeness of pairs", [("", "Spearman", "pairs", "covered"), *rows])
    return scores


def _report_analogies(scores: AnalogyScores, path: Path, console: Console) -> dict[str, Any]:
    every = [*scores.sections, scores.total]
    rows = [
        (one.name, f"{one.accuracy:.2%}" if one.num_covered else "-", f"{one.num_covered:,}", f"{one.num_questions:,}")
        for one in every
    ]
    console.print_table(f"analogies: {path.name}", [("", "right", "known", "asked"), *rows])
    told = {
        one.name: {"accuracy": one.accuracy if one.num_covered else None, **_section_counts(one)} for one in scores.sections
    }
    total = scores.total
    return {
        "accuracy": total.accuracy if total.num_covered else None,
        "coverage": scores.coverage,
        **_section_counts(total),
        "sections": told,
    }


def _section_counts(section: Any) -> dict[str, int]:
    return {"asked": section.num_questions, "known": section.num_covered, "right": section.num_correct}
