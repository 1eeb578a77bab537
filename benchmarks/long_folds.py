"""Long documents in folds: reviews with labels and articles with questions, each of them once to be judged on."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertsmith.artifacts import write_whole
from bertsmith.errors import BadInput
from bertsmith.tokenization.files import unpacked

CHARACTERS = 28_000  # of an article, at most: about two windows of 4,096 pieces
ENDINGS = {"reviews": "jsonl", "covid": "json"}


def part(out: Path, what: str, fold: int, name: str) -> Path:
    """The file of one fold to learn from (`train`) or to be judged on (`test`)."""
    return out / "folds" / f"{what}-{fold}-{name}.{ENDINGS[what]}"


def reviews(path: Path, folds: int, out: Path) -> None:
    rows = [_review(path, number, line) for number, line in enumerate(text_of(path).splitlines()) if line.strip()]
    known = sorted({row["fold"] for row in rows})
    rank = {fold: place * folds // len(known) for place, fold in enumerate(known)}  # ten folds are five of two each
    places = [rank[row["fold"]] if len(known) >= folds else number % folds for number, row in enumerate(rows)]
    lines = [json.dumps({"text": row["text"], "label": str(row["label"])}) + "\n" for row in rows]
    for fold in range(folds):
        for name, wanted in (("train", False), ("test", True)):
            chosen = [line for line, place in zip(lines, places, strict=True) if (place == fold) == wanted]
            _write(part(out, "reviews", fold, name), path, chosen)


def articles(path: Path, folds: int, out: Path) -> None:
    """Those with most questions are dealt out first; the longest are left out."""
    kept = [one for one in json.loads(text_of(path))["data"] if _longest(one) <= CHARACTERS]
    kept.sort(key=lambda article: -sum(len(paragraph["qas"]) for paragraph in article["paragraphs"]))
    for fold in range(folds):
        for name, wanted in (("train", False), ("test", True)):
            chosen = [article for number, article in enumerate(kept) if (number % folds == fold) == wanted]
            _write(part(out, "covid", fold, name), path, [json.dumps({"data": chosen})] if chosen else [])


def _review(path: Path, number: int, line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or not {"text", "label"} <= row.keys():
        raise BadInput(f"{path}, line {number + 1:,}: a review is an object with text and label")
    return {"fold": 0} | row


def _longest(article: dict[str, Any]) -> int:
    return max((len(paragraph["context"]) for paragraph in article["paragraphs"]), default=0)


def text_of(path: Path) -> str:
    return b"".join(data for data, _ in unpacked(path)).decode("utf-8")


def _write(place: Path, source: Path, lines: Iterable[str]) -> None:
    text = "".join(lines)
    if not text:
        raise BadInput(f"{source} has too little for {place.name}; give more of it, or ask for other folds")
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, text.encode("utf-8"))
