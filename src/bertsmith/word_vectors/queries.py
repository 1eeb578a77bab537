"""What vectors of words say: the neighbours of a word, an analogy, and scores on the files people are asked by."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..console import Screen
from ..errors import BadInput
from . import Vectors
from .benchmarks import Analogies, answered, likeness

Found = list[tuple[str, float]]


def told(
    vectors: Vectors, word: str | None, analogy: Sequence[str], similarity: Sequence[Path], analogies: Sequence[Path],
    top: int, fold: bool, screen: Screen,
) -> dict[str, Any]:  # fmt: skip
    """Everything that was asked for; neighbours and analogies also go to stdout, one JSON a line."""
    result: dict[str, Any] = {"words": len(vectors), "width": vectors.width}
    if analogy and len(analogy) != 3:
        raise BadInput(f'analogy={list(analogy)} is not three words: \'["man", "king", "woman"]\'')
    if word is not None:
        result["neighbours"] = _said(vectors.neighbours(word, top))
    if analogy:
        result["analogy"] = _said(vectors.analogy(analogy[0], analogy[1], analogy[2], top=top))
    if similarity:
        result["similarity"] = _likeness(vectors, similarity, fold, screen)
    if analogies:
        result["analogies"] = {str(path): _scores(answered(vectors, path, fold), path, screen) for path in analogies}
    return result


def _said(found: Found) -> list[dict[str, Any]]:
    rows = [{"word": word, "score": round(score, 6)} for word, score in found]
    sys.stdout.writelines(msgspec.json.encode(row).decode() + "\n" for row in rows)
    return rows


def _likeness(vectors: Vectors, paths: Sequence[Path], fold: bool, screen: Screen) -> dict[str, Any]:
    scores = {str(path): likeness(vectors, path, fold)._asdict() for path in paths}
    rows = [(Path(path).name, f"{s['spearman']:.4f}", f"{s['pairs']:,}", f"{s['coverage']:.1%}") for path, s in scores.items()]
    screen.table("likeness of pairs", [("", "Spearman", "pairs", "covered"), *rows])
    return scores


def _scores(found: Analogies, path: Path, screen: Screen) -> dict[str, Any]:
    every = [*found.sections, found.total]
    rows = [(one.name, f"{one.accuracy:.2%}" if one.known else "-", f"{one.known:,}", f"{one.asked:,}") for one in every]
    screen.table(f"analogies: {path.name}", [("", "right", "known", "asked"), *rows])
    told = {one.name: {"accuracy": one.accuracy if one.known else None, **_counts(one)} for one in found.sections}
    total = found.total
    return {"accuracy": total.accuracy if total.known else None, "coverage": found.coverage, **_counts(total), "sections": told}


def _counts(section: Any) -> dict[str, int]:
    return {"asked": section.asked, "known": section.known, "right": section.right}
