"""Charts of the workshop: curves of one run and of several, tokens of a batch, and the tables of `race` and `compress`."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from ...corpus.collate import MlmTargets, NumpyBatch
from ...corpus.loader import BatchLoader
from ...corpus.store import Corpus
from ...reports.charts import (
    COLORS,
    FULL_WIDTH,
    HALF_WIDTH,
    Chart,
    FlowToken,
    LabeledPoint,
    Series,
    TokenFlow,
    extract_points,
    line_chart,
    scatter_chart,
    value_map,
)
from ...reports.masking import CORRUPTIONS, classify_corruption, pair_label_names, restore_tokens
from ...reports.training_curves import ACCURACIES
from .runs import RunView

Translate = Callable[[str], str]
TOKEN_LOSSES = ("mlm_loss", "lm_loss")  # that the unigram baseline is comparable with
PSEUDO_PERPLEXITY = "pseudo_perplexity"


class BatchSample(NamedTuple):
    """A training sample as the model receives it."""

    facts: list[str]
    flow: TokenFlow


def loss_column(run: RunView) -> str:
    """The loss of tokens, where the log has it."""
    return next((name for name in TOKEN_LOSSES if any(name in row for row in run.rows)), "loss")


def split_rows(run: RunView) -> dict[str | None, list[dict[str, Any]]]:
    """Rows with a loss by split; None: training."""
    rows: dict[str | None, list[dict[str, Any]]] = {}
    for row in run.rows:
        if "loss" in row:
            rows.setdefault(row.get("split"), []).append(row)
    return rows


def draw_run(run: RunView, t: Translate) -> tuple[list[Chart], list[Chart]]:
    """(wide charts, small charts): loss against the unigram baseline, accuracies, learning rate, gradient norm."""
    column, rows = loss_column(run), split_rows(run)
    train = rows.get(None, [])
    has_baseline = run.unigram_entropy is not None and column in TOKEN_LOSSES
    reference = (t("unigram baseline"), float(run.unigram_entropy or 0.0)) if has_baseline else None
    series = [Series(t("training"), extract_points(train, column))]
    for split, split_values in rows.items():
        if split is not None:
            name = t("one token masked at a time") if split == PSEUDO_PERPLEXITY else t("validation")
            series.append(Series(name, extract_points(split_values, column if split != PSEUDO_PERPLEXITY else "loss"), "dots"))
    wide = [line_chart(t("Loss (nats)"), series, t("step"), reference)]
    names = sorted({name for row in run.rows for name in row if name.endswith("accuracy")})
    accuracies = [
        Series(f"{t(ACCURACIES.get(name, 'accuracy'))}, {title}", extract_points(rows.get(split, []), name), style)
        for name in names for split, title, style in _named_splits(rows, t)
    ]  # fmt: skip
    accuracies = [one for one in accuracies if one.points][: len(COLORS)]
    if accuracies:
        wide.append(line_chart(t("Accuracy"), accuracies, t("step"), include_zero=True))
    small = [
        line_chart(t(title), [Series(t(title), extract_points(train, key))], t("step"), include_zero=True, width=HALF_WIDTH)
        for title, key in (("Learning rate", "learning_rate"), ("Gradient norm", "grad_norm"))
    ]
    return wide, small


def draw_comparison(runs: Sequence[RunView], t: Translate) -> list[Chart]:
    """Training and validation loss of several runs, by step and by tokens."""
    charts = []
    columns = {loss_column(run) for run in runs}
    column = columns.pop() if len(columns) == 1 else "loss"
    shown = list(runs)[: len(COLORS)]
    entropies = {round(run.unigram_entropy, 6) for run in shown if run.unigram_entropy is not None}
    reference = (t("unigram baseline"), entropies.pop()) if len(entropies) == 1 and column in TOKEN_LOSSES else None
    train = {run.path: split_rows(run).get(None, []) for run in shown}
    by_step = [Series(run.path, extract_points(train[run.path], column)) for run in shown]
    charts.append(line_chart(t("Training loss by step (nats)"), by_step, t("step"), reference))
    by_tokens = [
        Series(run.path, [(float(row["tokens"]), float(row[column])) for row in train[run.path]
                          if isinstance(row.get(column), float) and isinstance(row.get("tokens"), int)])
        for run in shown
    ]  # fmt: skip
    charts.append(line_chart(t("Training loss by tokens (nats)"), by_tokens, t("tokens"), reference))
    valid = []
    for run in shown:
        rows = next((r for split, r in split_rows(run).items() if split not in (None, PSEUDO_PERPLEXITY)), [])
        valid.append(Series(run.path, extract_points(rows, column), "dots"))
    if any(series.points for series in valid):
        charts.append(line_chart(t("Validation loss by step (nats)"), valid, t("step"), reference))
    return charts


def describe_batch(
    corpus: Corpus, loader: BatchLoader, k: int, first: int, count: int, t: Translate
) -> tuple[list[BatchSample], int]:
    """Samples first .. first + count of micro-batch k, and how many it has; a pure function of (corpus, seed, k)."""
    batch = loader(k)
    ends = np.cumsum(batch.lengths)
    corruption, originals = _corruptions(batch, loader, corpus)
    names = pair_label_names(loader) if batch.labels is not None else ("", "")
    samples = []
    for index in range(first, min(first + count, len(ends))):
        begin, end = int(ends[index] - batch.lengths[index]), int(ends[index])
        facts = [f"{t('sample')} {index + 1}", f"{end - begin} {t('tokens')}"]
        if corruption:
            facts.append(f"{sum(bool(corruption[i]) for i in range(begin, end))} {t('to predict')}")
        facts += [t(names[int(batch.labels[index])])] if batch.labels is not None else []
        tokens = [_flow_token(corpus, batch, i, begin, corruption, originals, t) for i in range(begin, end)]
        samples.append(BatchSample(facts, TokenFlow("", tokens)))
    return samples, len(ends)


def draw_race(record: dict[str, Any], t: Translate) -> list[Chart]:
    """Scores of every member on every task, and average score by size."""
    members = [member for member in record.get("members", []) if isinstance(member, dict)]
    charts = list[Chart]()
    modes = list(dict.fromkeys(mode for member in members for mode in _as_dict(member.get("scores"))))
    for mode in modes:
        tasks = list(dict.fromkeys(task for member in members for task in _as_dict(_as_dict(member.get("scores")).get(mode))))
        table = [(str(member.get("name")), [_mean(member, mode, task) for task in tasks]) for member in members]
        table = [(name, values) for name, values in table if any(value is not None for value in values)]
        if not table:
            continue
        table.sort(key=lambda row: -(row[1][-1] if row[1][-1] is not None else -1.0))
        columns = list(zip(*(values for _, values in table), strict=True))
        cells = [[_score_cell(value, column) for value, column in zip(values, columns, strict=True)] for _, values in table]
        title = t("Fine-tuned") if mode == "tuned" else t("Frozen encoder") if mode == "frozen" else mode
        charts.append(value_map(title, cells, [name for name, _ in table], tasks, corner=""))
        points = [
            LabeledPoint(str(member.get("name")), float(member["parameters"]), 100 * float(average))
            for member in members
            if isinstance(member.get("parameters"), int | float) and (average := _mean(member, mode, tasks[-1])) is not None
        ]
        charts.append(scatter_chart(f"{title}: {t('average score by number of parameters')}", points, t("parameters")))
    return charts


def draw_front(record: dict[str, Any], t: Translate) -> list[Chart]:
    """Score against latency and size of everything that `compress` measured."""
    artifacts = [artifact for artifact in record.get("artifacts", []) if isinstance(artifact, dict)]
    metric = str(record.get("metric", ""))
    charts = []
    for key, title, unit, scale in (("latency_p50", "latency of one text", "ms", 1000.0), ("bytes", "size", "MB", 1e-6)):
        points = []
        for artifact in artifacts:
            score, cost = _as_dict(artifact.get("score")), artifact.get(key)
            value, interval = score.get("value"), score.get("confidence_interval")
            if _is_number(value) and _is_number(cost) and cost > 0:
                error = (interval[1] - interval[0]) / 2 if isinstance(interval, list) and len(interval) == 2 else 0.0
                color = COLORS[1] if artifact.get("precision") == "int8" else COLORS[0]
                points.append(LabeledPoint(str(artifact.get("name")), scale * cost, value, color, error))
        charts.append(scatter_chart(f"{metric}: {t(title)}", points, unit, width=FULL_WIDTH))
    return charts


def _named_splits(rows: dict[str | None, Any], t: Translate) -> list[tuple[str | None, str, Any]]:
    return [(split, t("training") if split is None else t("validation"), "line" if split is None else "dots")
            for split in rows if split != PSEUDO_PERPLEXITY]  # fmt: skip


def _corruptions(batch: NumpyBatch, loader: BatchLoader, corpus: Corpus) -> tuple[list[str], Any]:
    """The corruption of each token ("" for those that are not predicted) and its original id; empty without masks."""
    if not isinstance(loader.collator.targets, MlmTargets):
        return [], batch.input_ids
    names = [""] * len(batch.input_ids)
    kinds = classify_corruption(batch, corpus.tokenizer.mask_token_id)
    for position, kind in zip(batch.output_indices.tolist(), kinds.tolist(), strict=True):
        names[position] = CORRUPTIONS[kind]
    return names, restore_tokens(batch)


def _flow_token(
    corpus: Corpus, batch: NumpyBatch, index: int, begin: int, corruption: list[str], originals: Any, t: Translate
) -> FlowToken:
    names, token_id, original = corpus.tokenizer.id_to_token, int(batch.input_ids[index]), int(originals[index])
    style = corruption[index] if corruption else ""
    segment = "" if batch.token_type_ids is None else f" {'AB'[int(batch.token_type_ids[index])]}"
    joins = index > begin and bool(corpus.tokenizer.is_continuation[original])
    below = names[original] if style in ("masked", "random") else ""
    return FlowToken(names[token_id], below, 0.0, style, joins, f"{token_id}{segment}{' · ' + t(style) if style else ''}")


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mean(member: dict[str, Any], mode: str, task: str) -> float | None:
    value = _as_dict(_as_dict(_as_dict(member.get("scores")).get(mode)).get(task)).get("mean")
    return float(value) if value is not None and _is_number(value) else None


def _score_cell(value: float | None, column: Sequence[float | None]) -> tuple[str, float]:
    """The score times 100, colored from the lowest to the highest of its column."""
    if value is None:
        return "–", 0.0
    known = [other for other in column if other is not None]
    low, high = min(known), max(known)
    return f"{100 * value:.1f}", (value - low) / (high - low) if high > low else 0.5
