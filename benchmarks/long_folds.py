"""Long documents in folds: reviews with labels and articles with questions, each of them once to be judged on."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertsmith.artifacts import write_atomic
from bertsmith.errors import UserError
from bertsmith.tokenization.files import read_decompressed

MAX_CHARACTERS = 28_000  # of an article, at most: about two windows of 4,096 pieces
SUFFIXES = {"reviews": "jsonl", "covid": "json"}


def fold_path(out: Path, dataset: str, fold: int, split: str) -> Path:
    """The file of one fold to learn from (`train`) or to be judged on (`test`)."""
    return out / "folds" / f"{dataset}-{fold}-{split}.{SUFFIXES[dataset]}"


def write_review_folds(path: Path, num_folds: int, out: Path) -> None:
    rows = [_parse_review(path, number, line) for number, line in enumerate(read_text(path).splitlines()) if line.strip()]
    known = sorted({row["fold"] for row in rows})
    rank = {fold: place * num_folds // len(known) for place, fold in enumerate(known)}  # ten folds are five of two each
    places = [rank[row["fold"]] if len(known) >= num_folds else number % num_folds for number, row in enumerate(rows)]
    lines = [json.dumps({"text": row["text"], "label": str(row["label"])}) + "\n" for row in rows]
    for fold in range(num_folds):
        for name, wanted in (("train", False), ("test", True)):
            chosen = [line for line, place in zip(lines, places, strict=True) if (place == fold) == wanted]
            _write_fold(fold_path(out, "reviews", fold, name), path, chosen)


def write_article_folds(path: Path, num_folds: int, out: Path) -> None:
    """Those with most questions are dealt out first; the longest are left out."""
    kept = [one for one in json.loads(read_text(path))["data"] if _max_context_length(one) <= MAX_CHARACTERS]
    kept.sort(key=lambda article: -sum(len(paragraph["qas"]) for paragraph in article["paragraphs"]))
    for fold in range(num_folds):
        for name, wanted in (("train", False), ("test", True)):
            chosen = [article for number, article in enumerate(kept) if (number % num_folds == fold) == wanted]
            _write_fold(fold_path(out, "covid", fold, name), path, [json.dumps({"data": chosen})] if chosen else [])


def _parse_review(path: Path, index: int, line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or not {"text", "label"} <= row.keys():
        raise UserError(f"{path}, line {index + 1:,}: a review is an object with text and label")
    return {"fold": 0} | row


def _max_context_length(article: dict[str, Any]) -> int:
    return max((len(paragraph["context"]) for paragraph in article["paragraphs"]), default=0)


def read_text(path: Path) -> str:
    return b"".join(data for data, _ in read_decompressed(path)).decode("utf-8")


def _write_fold(path: Path, source: Path, lines: Iterable[str]) -> None:
    text = "".join(lines)
    if not text:
        raise UserError(f"{source} has too little for {path.name}; give more of it, or ask for other folds")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode("utf-8"))
