"""How a run went, or is going: its loss, accuracies, rate and gradients against the step."""

import json
import math
from pathlib import Path
from typing import Any

from ..artifacts import read_json
from ..errors import BadInput
from .charts import HALF, Series, lines, points
from .html import Html, element, note, section, tiles

WORDS, NEXT = ("mlm_accuracy", "masked words"), ("next_accuracy", "sentence pairs")

FAIR = (
    "A tenth of the words asked for stand in sight and are easily copied, so the loss falls below the dashed line before "
    "anything is learnt from context. The fair comparison is with each word hidden alone."
)

Rows = list[dict[str, Any]]


def rows(folder: Path) -> Rows:
    """The rows of metrics.jsonl that still hold: those a rollback undid are left out, and so is a row half written."""
    path = folder / "metrics.jsonl"
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; give the `out` of a `pretrain`, finished or not")
    if not path.exists() or not path.stat().st_size:
        raise BadInput(f"{path} holds nothing yet; a run writes its first row after train.log_every steps")
    found: Rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            row = json.loads(line)
            back = row.get("rollback", row["step"])
        except (json.JSONDecodeError, AttributeError, KeyError):
            raise BadInput(f"{path}, line {number}: no row of metrics: {line[:80]!r}") from None
        found = [old for old in found if old["step"] <= back] if "rollback" in row else [*found, row]
    return found


def curves(folder: Path, baseline: float | None = None) -> Html:
    """Every chart of the run in `folder`; `baseline` is the unigram entropy where the folder does not know it yet."""
    every = rows(folder)
    train, valid, alone = ([r for r in every if "loss" in r and r.get("trial") == name] for name in (None, "valid", "alone"))
    if not train and not valid:
        raise BadInput(f"{folder / 'metrics.jsonl'} has no loss in any row; the run did not get so far")
    baseline = result(folder).get("unigram_entropy", baseline)
    name = "loss.words" if any("loss.words" in row for row in train + valid) else "loss"
    level = ("unigram entropy: knowing only how frequent words are", baseline) if baseline is not None else None
    single = Series("held out, each word hidden alone", points(alone, name), "dots")
    loss = lines("Loss on masked words, nats", [*_both(train, valid, name, "loss"), single], "step", level)
    accuracy = [s for key, words in (WORDS, NEXT) for s in _both(train, valid, key, words) if s.points]
    small = [
        lines(title, [Series(key, points(train, key))], "step", zero=True, wide=HALF)
        for title, key in (("Learning rate", "rate"), ("Length of the gradient", "norm"))
    ]
    right = lines("Share of right answers", accuracy, "step", zero=True)
    fair = note(FAIR) if single.points and level else Html("")
    return section("Curves", note(told(every)), loss, fair, right, element("div", *small, class_="pair"))


def told(every: Rows) -> str:
    """How far the run is, and what went wrong on the way, in a sentence."""
    steps = max(row["step"] for row in every)
    tokens = max((row["tokens"] for row in every if "tokens" in row), default=0)
    skipped = sum("skipped" in row for row in every)
    return f"{steps:,} steps, {tokens:,} tokens read" + (f", {skipped:,} updates skipped." if skipped else ".")


def result(folder: Path) -> dict[str, Any]:
    """What a finished run wrote into its card; nothing, while it runs."""
    return dict(read_json(folder / "card.json")["result"]) if (folder / "card.json").exists() else {}


def results(folder: Path) -> Html:
    """The numbers a reader comes for, of a finished run."""
    found = result(folder)
    unigram = f"knowing only frequencies gives {math.exp(found['unigram_entropy']):,.0f}"
    told = [
        ("pseudo-perplexity", found.get("pseudo_perplexity"), f"each held-out word hidden alone; {unigram}"),
        ("masked words right", _percent(found.get("valid_mlm_accuracy")), "at the first guess; a tenth stand in sight"),
        ("pairs right", _percent(found.get("valid_next_accuracy")), "guessing gives 50%"),
        ("held-out loss", found.get("valid_loss_words", found.get("valid_loss")), "masked words, nats"),
        ("tokens read", found["tokens"], f"in {found['step']:,} steps"),
        ("time", f"{found['seconds'] / 60:.1f} min", f"{found.get('tokens_per_second') or 0:,.0f} tokens a second"),
        ("parameters", found["parameters"], "numbers that were learnt"),
    ]
    return section("Results", tiles((name, value, about) for name, value, about in told if value is not None))


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _both(train: Rows, valid: Rows, key: str, name: str) -> list[Series]:
    return [Series(f"{name}, training", points(train, key)), Series(f"{name}, held out", points(valid, key), "dots")]
