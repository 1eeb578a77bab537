"""The HTML sections of a training run: loss, accuracy, learning rate and gradient norm by step, and its results."""

import math
from pathlib import Path
from typing import Any

from .. import artifacts
from ..artifacts import MODEL_KINDS, detect_kind, require_kind
from ..errors import UserError
from ..reading import read_json_lines
from .charts import HALF_WIDTH, Series, extract_points, line_chart
from .html import Section, render

ACCURACIES = {"mlm_accuracy": "masked tokens", "nsp_accuracy": "next sentence", "sop_accuracy": "sentence order"}  # by metric

PSEUDO_PERPLEXITY_NOTE = (
    "One in ten of the selected tokens is left unchanged in the input and can be copied, so the masked-token loss may fall "
    "below the unigram baseline before the model uses any context. Compare the baseline with the pseudo-perplexity loss, "
    "which masks one token at a time."
)

MetricRows = list[dict[str, Any]]


def read_metrics(folder: Path) -> MetricRows:
    """The rows of metrics.jsonl, without those that a rollback undid and without an incomplete last line."""
    path = folder / "metrics.jsonl"
    if not folder.is_dir() or detect_kind(folder) not in (*MODEL_KINDS, "unfinished run", None):
        require_kind(folder, "run")
    if not path.exists() or not path.stat().st_size:
        raise UserError(f"{path} has no rows yet; a run writes the first one after train.log_every steps")
    rows: MetricRows = []
    for line_number, row in read_json_lines(path):
        if not isinstance(row, dict) or not all(
            isinstance(row.get(key, row.get("step")), int) for key in ("step", "rollback_to")
        ):
            raise UserError(f"{path}, line {line_number}: not a row of metrics: {str(row)[:80]!r}")
        rollback_step = row.get("rollback_to", row["step"])
        rows = [old for old in rows if old["step"] <= rollback_step] if "rollback_to" in row else [*rows, row]
    return rows


def render_curves(folder: Path, unigram_entropy: float | None = None) -> Section:
    """All charts of the run in `folder`; `unigram_entropy` is used if the run is not finished."""
    rows = read_metrics(folder)
    train, valid, pseudo = (
        [row for row in rows if "loss" in row and row.get("split") == split] for split in (None, "valid", "pseudo_perplexity")
    )
    if not train and not valid:
        raise UserError(f"{folder / 'metrics.jsonl'} has no row with a loss yet")
    unigram_entropy = read_result(folder).get("unigram_entropy", unigram_entropy)
    has_mlm_loss = any("mlm_loss" in row for row in train + valid)
    loss_key, loss_title = ("mlm_loss", "MLM loss (nats)") if has_mlm_loss else ("loss", "Loss (nats)")
    reference = ("unigram baseline (token frequencies only)", unigram_entropy) if unigram_entropy is not None else None
    pseudo_loss = Series("validation, one token masked at a time (pseudo-perplexity)", extract_points(pseudo, loss_key), "dots")
    loss_chart = line_chart(loss_title, [*_train_valid_series(train, valid, loss_key), pseudo_loss], "step", reference)
    accuracies = [
        series
        for key, name in ACCURACIES.items()
        for series in _train_valid_series(train, valid, key, f"{name}, ")
        if series.points
    ]
    small_charts = [
        line_chart(title, [Series(key, extract_points(train, key))], "step", include_zero=True, width=HALF_WIDTH)
        for title, key in (("Learning rate", "learning_rate"), ("Gradient norm", "grad_norm"))
    ]
    accuracy_chart = line_chart("Accuracy", accuracies, "step", include_zero=True) if accuracies else None
    body = render(
        "curves",
        "curves",
        progress=describe_progress(rows),
        loss_chart=loss_chart,
        explanation=PSEUDO_PERPLEXITY_NOTE if pseudo_loss.points and reference else "",
        accuracy_chart=accuracy_chart or "",
        small_charts=small_charts,
    )
    return Section("Curves", body, (loss_chart, *([accuracy_chart] if accuracy_chart else []), *small_charts))


def describe_progress(rows: MetricRows) -> str:
    """Steps, tokens and skipped updates as a sentence."""
    steps = max(row["step"] for row in rows)
    tokens = max((row["tokens"] for row in rows if "tokens" in row), default=0)
    skipped = sum("skip_reason" in row for row in rows)
    return f"{steps:,} steps, {tokens:,} training tokens" + (f", {skipped:,} updates skipped." if skipped else ".")


def read_result(folder: Path) -> dict[str, Any]:
    """The result in card.json of a finished run; empty while it is running."""
    return artifacts.read_result(folder) if (folder / "card.json").exists() else {}


def render_results(folder: Path) -> Section:
    """Key figures of a finished run as tiles."""
    result = read_result(folder)
    unigram_perplexity = f"{math.exp(result['unigram_entropy']):,.0f}"
    loss, loss_note = (result.get("valid_loss"), "nats per predicted token")
    if "valid_mlm_loss" in result:
        loss, loss_note = result["valid_mlm_loss"], "nats per masked token"
    facts = [
        ("pseudo-perplexity", result.get("pseudo_perplexity"),
         f"on validation text, one token masked at a time; unigram baseline: {unigram_perplexity}"),
        ("masked-token accuracy", _format_percent(result.get("valid_mlm_accuracy")),
         "on validation text; one in ten of these tokens is unchanged"),
        ("next-sentence accuracy", _format_percent(result.get("valid_nsp_accuracy")),
         "on validation text; random guessing: 50%"),
        ("sentence-order accuracy", _format_percent(result.get("valid_sop_accuracy")),
         "on validation text; random guessing: 50%"),
        ("validation loss", loss, loss_note),
        ("training tokens", result["tokens"], f"in {result['step']:,} steps"),
        ("training time", f"{result['seconds'] / 60:.1f} min",
         f"{result.get('tokens_per_second') or 0:,.0f} tokens per second"),
        ("parameters", result["parameters"], "in the model"),
    ]  # fmt: skip
    return Section("Results", render("curves", "results", facts=[fact for fact in facts if fact[1] is not None]))


def _format_percent(fraction: float | None) -> str | None:
    return None if fraction is None else f"{fraction:.1%}"


def _train_valid_series(train: MetricRows, valid: MetricRows, key: str, prefix: str = "") -> list[Series]:
    return [
        Series(f"{prefix}training", extract_points(train, key)),
        Series(f"{prefix}validation", extract_points(valid, key), "dots"),
    ]
