"""How a run went, or is going: its loss, accuracies, rate and gradients against the step."""

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
    """The rows of metrics.jsonl that still hold: those a rollback undid are left out, and so is a row half written."""
    path = folder / "metrics.jsonl"
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give the `out` of a `pretrain`, finished or not")
    if not path.exists() or not path.stat().st_size:
        raise UserError(f"{path} holds nothing yet; a run writes its first row after train.log_every steps")
    found: MetricRows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            row = json.loads(line)
            back = row.get("rollback", row["step"])
        except (json.JSONDecodeError, AttributeError, KeyError):
            raise UserError(f"{path}, line {number}: no row of metrics: {line[:80]!r}") from None
        found = [old for old in found if old["step"] <= back] if "rollback" in row else [*found, row]
    return found


def render_curves(folder: Path, unigram_entropy: float | None = None) -> Html:
    """Every chart of the run in `folder`; `baseline` is the unigram entropy where the folder does not know it yet."""
    every = read_metrics(folder)
    train, valid, alone = ([r for r in every if "loss" in r and r.get("trial") == name] for name in (None, "valid", "alone"))
    if not train and not valid:
        raise UserError(f"{folder / 'metrics.jsonl'} has no loss in any row; the run did not get so far")
    unigram_entropy = read_result(folder).get("unigram_entropy", unigram_entropy)
    name = "loss.words" if any("loss.words" in row for row in train + valid) else "loss"
    level = ("unigram entropy: knowing only how frequent words are", unigram_entropy) if unigram_entropy is not None else None
    single = Series("held out, each word hidden alone", extract_points(alone, name), "dots")
    loss = line_chart("Loss on masked words, nats", [*_train_eval_series(train, valid, name, "loss"), single], "step", level)
    accuracy = [
        s for key, words in (MLM_ACCURACY, NSP_ACCURACY) for s in _train_eval_series(train, valid, key, words) if s.points
    ]
    small = [
        line_chart(title, [Series(key, extract_points(train, key))], "step", include_zero=True, width=HALF_WIDTH)
        for title, key in (("Learning rate", "rate"), ("Length of the gradient", "norm"))
    ]
    right = line_chart("Share of right answers", accuracy, "step", include_zero=True)
    fair = note(PSEUDO_PERPLEXITY_NOTE) if single.points and level else Html("")
    return section("Curves", note(describe_progress(every)), loss, fair, right, element("div", *small, class_="pair"))


def describe_progress(rows: MetricRows) -> str:
    """How far the run is, and what went wrong on the way, in a sentence."""
    steps = max(row["step"] for row in rows)
    tokens = max((row["tokens"] for row in rows if "tokens" in row), default=0)
    skipped = sum("skipped" in row for row in rows)
    return f"{steps:,} steps, {tokens:,} tokens read" + (f", {skipped:,} updates skipped." if skipped else ".")


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run wrote into its card; nothing, while it runs."""
    return dict(read_json(folder / "card.json")["result"]) if (folder / "card.json").exists() else {}


def render_results(folder: Path) -> Html:
    """The numbers a reader comes for, of a finished run."""
    found = read_result(folder)
    unigram = f"knowing only frequencies gives {math.exp(found['unigram_entropy']):,.0f}"
    told = [
        ("pseudo-perplexity", found.get("pseudo_perplexity"), f"each held-out word hidden alone; {unigram}"),
        ("masked words right", _format_percent(found.get("valid_mlm_accuracy")), "at the first guess; a tenth stand in sight"),
        ("pairs right", _format_percent(found.get("valid_next_accuracy")), "guessing gives 50%"),
        ("held-out loss", found.get("valid_loss_words", found.get("valid_loss")), "masked words, nats"),
        ("tokens read", found["tokens"], f"in {found['step']:,} steps"),
        ("time", f"{found['seconds'] / 60:.1f} min", f"{found.get('tokens_per_second') or 0:,.0f} tokens a second"),
        ("parameters", found["parameters"], "numbers that were learnt"),
    ]
    return section("Results", tiles((name, value, about) for name, value, about in told if value is not None))


def _format_percent(fraction: float | None) -> str | None:
    return None if fraction is None else f"{fraction:.1%}"


def _train_eval_series(train: MetricRows, valid: MetricRows, key: str, name: str) -> list[Series]:
    return [
        Series(f"{name}, training", extract_points(train, key)),
        Series(f"{name}, held out", extract_points(valid, key), "dots"),
    ]
