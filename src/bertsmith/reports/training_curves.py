"""The HTML sections of a training run: loss, accuracy, learning rate and gradient norm by step, and its results."""

import json
import math
from pathlib import Path
from typing import Any

from ..artifacts import read_json
from ..errors import UserError
from .charts import HALF_WIDTH, Series, extract_points, line_chart
from .html import Html, element, note, section, tiles

MLM_ACCURACY, NSP_ACCURACY = ("mlm_accuracy", "masked words"), ("next_accuracy", "sentence pairs")

PSEUDO_PERPLEXITY_NOTE = (
    "A tenth of the words asked for stand in sight and are easily copied, so the loss falls below the dashed line before "
    "anything is learnt from context. The fair comparison is with each word hidden alone."
)

MetricRows = list[dict[str, Any]]


def read_metrics(folder: Path) -> MetricRows:
    """The rows of metrics.jsonl, without those that a rollback undid and without an incomplete last line."""
    path = folder / "metrics.jsonl"
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give the `out` of a `pretrain`, finished or not")
    if not path.exists() or not path.stat().st_size:
        raise UserError(f"{path} holds nothing yet; a run writes its first row after train.log_every steps")
    rows: MetricRows = []
    for line_number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            row = json.loads(line)
            rollback_step = row.get("rollback", row["step"])
        except (json.JSONDecodeError, AttributeError, KeyError):
            raise UserError(f"{path}, line {line_number}: no row of metrics: {line[:80]!r}") from None
        rows = [old for old in rows if old["step"] <= rollback_step] if "rollback" in row else [*rows, row]
    return rows


def render_curves(folder: Path, unigram_entropy: float | None = None) -> Html:
    """All charts of the run in `folder`; `unigram_entropy` is used where the run has not written its result yet."""
    rows = read_metrics(folder)
    train, valid, pseudo = (
        [row for row in rows if "loss" in row and row.get("trial") == split] for split in (None, "valid", "alone")
    )
    if not train and not valid:
        raise UserError(f"{folder / 'metrics.jsonl'} has no loss in any row; the run did not get so far")
    unigram_entropy = read_result(folder).get("unigram_entropy", unigram_entropy)
    loss_key = "loss.words" if any("loss.words" in row for row in train + valid) else "loss"
    reference = (
        ("unigram entropy: knowing only how frequent words are", unigram_entropy) if unigram_entropy is not None else None
    )
    pseudo_loss = Series("held out, each word hidden alone", extract_points(pseudo, loss_key), "dots")
    loss_series = [*_train_eval_series(train, valid, loss_key, "loss"), pseudo_loss]
    loss_chart = line_chart("Loss on masked words, nats", loss_series, "step", reference)
    accuracy_series = [
        s for key, label in (MLM_ACCURACY, NSP_ACCURACY) for s in _train_eval_series(train, valid, key, label) if s.points
    ]
    small_charts = [
        line_chart(title, [Series(key, extract_points(train, key))], "step", include_zero=True, width=HALF_WIDTH)
        for title, key in (("Learning rate", "rate"), ("Length of the gradient", "norm"))
    ]
    accuracy_chart = line_chart("Share of right answers", accuracy_series, "step", include_zero=True)
    explanation = note(PSEUDO_PERPLEXITY_NOTE) if pseudo_loss.points and reference else Html("")
    charts = [loss_chart, explanation, accuracy_chart, element("div", *small_charts, class_="pair")]
    return section("Curves", note(describe_progress(rows)), *charts)


def describe_progress(rows: MetricRows) -> str:
    """Steps, tokens and skipped updates as a sentence."""
    steps = max(row["step"] for row in rows)
    tokens = max((row["tokens"] for row in rows if "tokens" in row), default=0)
    skipped = sum("skipped" in row for row in rows)
    return f"{steps:,} steps, {tokens:,} tokens read" + (f", {skipped:,} updates skipped." if skipped else ".")


def read_result(folder: Path) -> dict[str, Any]:
    """The result in card.json of a finished run; empty while it is running."""
    return dict(read_json(folder / "card.json")["result"]) if (folder / "card.json").exists() else {}


def render_results(folder: Path) -> Html:
    """Key figures of a finished run as tiles."""
    result = read_result(folder)
    unigram_note = f"knowing only frequencies gives {math.exp(result['unigram_entropy']):,.0f}"
    facts = [
        ("pseudo-perplexity", result.get("pseudo_perplexity"), f"each held-out word hidden alone; {unigram_note}"),
        ("masked words right", _format_percent(result.get("valid_mlm_accuracy")), "at the first guess; a tenth stand in sight"),
        ("pairs right", _format_percent(result.get("valid_next_accuracy")), "guessing gives 50%"),
        ("held-out loss", result.get("valid_loss_words", result.get("valid_loss")), "masked words, nats"),
        ("tokens read", result["tokens"], f"in {result['step']:,} steps"),
        ("time", f"{result['seconds'] / 60:.1f} min", f"{result.get('tokens_per_second') or 0:,.0f} tokens a second"),
        ("parameters", result["parameters"], "numbers that were learnt"),
    ]
    return section("Results", tiles((name, value, description) for name, value, description in facts if value is not None))


def _format_percent(fraction: float | None) -> str | None:
    return None if fraction is None else f"{fraction:.1%}"


def _train_eval_series(train: MetricRows, valid: MetricRows, key: str, name: str) -> list[Series]:
    return [
        Series(f"{name}, training", extract_points(train, key)),
        Series(f"{name}, held out", extract_points(valid, key), "dots"),
    ]
