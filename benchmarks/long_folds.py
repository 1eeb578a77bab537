"""Cross-validation folds of long documents: labelled reviews and articles with questions."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertsmith.errors import UserError
from bertsmith.tokenization.files import read_decompressed
from bertsmith.writing import write_atomic

MAX_CHARACTERS = 28_000  # of an article: about two windows of 4,096 tokens
SUFFIXES = {"reviews": "jsonl", "covid": "json"}


def fold_path(out: Path, dataset: str, fold: int, split: str) -> Path:
    """The file of one fold; `split` is train or test."""
    return out / "folds" / f"{dataset}-{fold}-{split}.{SUFFIXES[dataset]}"


def write_review_folds(path: Path, num_folds: int, out: Path) -> None:
    """Folds as the file has them, merged if it has more than `num_folds`; else assigned in turn."""
    rows = [_parse_review(path, row_index, line) for row_index, line in enumerate(read_text(path).splitlines()) if line.strip()]
    file_folds = sorted({row["fold"] for row in rows})
    fold_of = {
        fold: index * num_folds // len(file_folds) for index, fold in enumerate(file_folds)
    }  # ten folds become five of two each
    fold_ids = [
        fold_of[row["fold"]] if len(file_folds) >= num_folds else row_index % num_folds for row_index, row in enumerate(rows)
    ]
    lines = [json.dumps({"text": row["text"], "label": str(row["label"])}) + "\n" for row in rows]
    for fold in range(num_folds):
        for split, is_test in (("train", False), ("test", True)):
            chosen = [line for line, fold_id in zip(lines, fold_ids, strict=True) if (fold_id == fold) == is_test]
            _write_fold(fold_path(out, "reviews", fold, split), path, chosen)


def write_article_folds(path: Path, num_folds: int, out: Path) -> None:
    """Articles assigned in turn, those with most questions first; articles over MAX_CHARACTERS are left out."""
    articles = [article for article in json.loads(read_text(path))["data"] if _max_context_length(article) <= MAX_CHARACTERS]
    articles.sort(key=lambda article: -sum(len(paragraph["qas"]) for paragraph in article["paragraphs"]))
    for fold in range(num_folds):
        for split, is_test in (("train", False), ("test", True)):
            chosen = [article for index, article in enumerate(articles) if (index % num_folds == fold) == is_test]
            _write_fold(fold_path(out, "covid", fold, split), path, [json.dumps({"data": chosen})] if chosen else [])


def _parse_review(path: Path, index: int, line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or not {"text", "label"} <= row.keys():
        raise UserError(f"{path}, line {index + 1:,}: a review is a JSON object with text and label")
    return {"fold": 0} | row


def _max_context_length(article: dict[str, Any]) -> int:
    return max((len(paragraph["context"]) for paragraph in article["paragraphs"]), default=0)


def read_text(path: Path) -> str:
    return b"".join(data for data, _ in read_decompressed(path)).decode("utf-8")


def _write_fold(path: Path, source: Path, lines: Iterable[str]) -> None:
    text = "".join(lines)
    if not text:
        raise UserError(f"{source} has too few examples for {path.name}; give more, or lower folds")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode("utf-8"))
