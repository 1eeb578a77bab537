"""Sections of an evaluation report: per-label scores, confusion matrix, slices, worst errors."""

from typing import Any

from ..reports.charts import compute_axis_range, whisker
from ..reports.html import Section, format_value, render
from ..tasks.mistakes import Mistake, TextSpan
from .confusion import MAX_LABELS, ConfusionMatrix, LabelCounts, truncate_confusion
from .metric_names import DECIMAL_METRICS, display_name, format_interval, format_score
from .slices import MIN_EXAMPLES, Slice
from .summary import EvaluationSummary

MARKS = ("gold", "predicted", "both")  # of answers in a passage; also the css classes of their highlights
ANSWER_MISTAKE_KINDS = ("missed", "spurious", "partial match", "wrong")  # of question answering
MAX_LISTED_LABELS = 40  # labels in the table before the rest is collapsed


def render_labels(summary: EvaluationSummary) -> Section:
    """Precision, recall and F1 of each label, then the kinds of entity errors or the confusion matrix."""
    rows = [_label_row(row) for row in summary.label_counts]
    total = sum(count for _, _, count in summary.entity_mistakes)
    entity_rows = [(kind, types, count, f"{count / total:.1%}") for kind, types, count in summary.entity_mistakes[:MAX_LABELS]]
    name = "entity type" if summary.entity_mistakes or summary.evaluation.task.head_type == "token" else "label"
    body = render(
        "evaluation",
        "labels",
        name=name,
        rows=rows[:MAX_LISTED_LABELS],
        more_rows=rows[MAX_LISTED_LABELS:],
        entity_rows=entity_rows,
        confusion=describe_confusion(summary.confusion) if summary.confusion and not entity_rows else None,
    )
    return Section(f"Scores by {name}", body)


def describe_confusion(confusion: ConfusionMatrix) -> dict[str, Any]:
    """Gold labels in rows; off the diagonal, a cell's color is its share of the row, relative to the largest such share."""
    matrix = truncate_confusion(confusion)
    shares = [[count / max(sum(row), 1) for count in row] for row in matrix.table]
    max_error = max((share for i, row in enumerate(shares) for j, share in enumerate(row) if i != j), default=0) or 1.0
    rows = []
    for i, (label, counts) in enumerate(zip(matrix.labels, matrix.table, strict=True)):
        cells = [
            {
                "count": format_value(count) if count else "·",
                "share": f"{shares[i][j]:.1%}",
                "heat": f"{45 * shares[i][j] / (1 if i == j else max_error):.1f}",
                "is_correct": i == j,
            }
            for j, count in enumerate(counts)
        ]
        rows.append((label, cells))
    caption = "Rows are gold labels, columns predicted labels."
    if matrix.num_omitted:
        caption += (
            f" Only the {MAX_LABELS} labels with most errors are shown; scores.json has the other {matrix.num_omitted:,}."
        )
    return {"labels": matrix.labels, "rows": rows, "caption": caption}


def render_slices(summary: EvaluationSummary) -> Section:
    """Score and interval of every slice on one scale, with the score of all examples as reference."""
    name, result = summary.slice_metric
    overall = result.compute_interval()
    scores = [part.score for slicing in summary.slicings for part in slicing.slices if part.count >= MIN_EXAMPLES] + [overall]
    edges = [edge for score in scores for edge in (score.value, score.low, score.high)]
    limits = compute_axis_range(edges, bounds=_score_bounds(name))
    all_examples = Slice("all", len(summary.evaluation.examples), overall)
    overall_row = _slice_row(all_examples, name, limits, overall.value)
    groups = [("", [overall_row | {"css_class": overall_row["css_class"] or "best"}])]
    for slicing in summary.slicings:
        rows = [_slice_row(part, slicing.metric, limits, overall.value, result.lower_is_better) for part in slicing.slices]
        groups.append((f"by {slicing.by}", rows))
    metric = display_name(name)
    caption = (
        f"{metric[0].upper()}{metric[1:]} on subsets of the examples; the dashed line is the score on all examples. "
        f"A slice is marked better or worse if it has at least {MIN_EXAMPLES} examples and its 95% CI excludes that score; "
        "about one slice in twenty does so by chance."
    )
    ends = [format_score(name, edge) for edge in limits]
    return Section("Scores by slice", render("evaluation", "slices", caption=caption, metric=metric, ends=ends, groups=groups))


def render_mistakes(summary: EvaluationSummary, max_mistakes: int) -> Section:
    """The `max_mistakes` worst errors with their texts."""
    mistakes, count = summary.mistakes, len(summary.evaluation.examples)
    caption = "No errors: every prediction is correct."
    if mistakes:
        task, predictions, examples = summary.evaluation.task, summary.evaluation.predictions, summary.evaluation.examples
        is_graded = task.find_correct(predictions, examples) is None  # no prediction is exactly right
        wrong = "" if is_graded else f"{len(mistakes):,} of {count:,} examples have errors. "
        order = task.mistake_order
        caption = f"{wrong}The {min(max_mistakes, len(mistakes)):,} shown are {order}."
    examples = [describe_mistake(mistake) for mistake in mistakes[:max_mistakes]]
    legend = _mark_legend(summary) if mistakes else []
    return Section("Worst errors", render("evaluation", "mistakes", caption=caption, legend=legend, examples=examples))


def describe_mistake(mistake: Mistake) -> dict[str, Any]:
    """One error for the template: its texts, then the gold and the predicted answer with the confidence."""
    answers = [("gold", mistake.gold), ("predicted", mistake.prediction)] if mistake.gold or mistake.prediction else []
    is_marked = mistake.kind != "tags"  # in lists of entities, the text itself is highlighted
    return {
        "texts": [[_describe_span(span) for span in spans] for spans in mistake.texts],
        "kind": mistake.kind if mistake.kind in ANSWER_MISTAKE_KINDS else "",
        "answers": [(name, text, name if is_marked else "") for name, text in answers],
        "confidence": f"confidence {mistake.confidence:.1%}" if mistake.confidence is not None else "",
        "location": mistake.location,
    }


def _mark_legend(summary: EvaluationSummary) -> list[tuple[str, str]]:
    """(css class, meaning) of the highlight colors; empty for tasks whose texts are not highlighted."""
    if summary.evaluation.task.head_type == "span":
        return [("gold", "gold answer"), ("predicted", "predicted answer"), ("both", "both")]
    return [("wrong", "missed, spurious or wrong entity")] if summary.entity_mistakes else []


def _describe_span(span: TextSpan) -> tuple[str, str, str]:
    """(text, css class of its highlight, annotation); tagged entities are annotated with what is wrong."""
    if not span.mark or span.mark in MARKS:
        return span.text, span.mark, ""
    return span.text, "wrong", span.mark


def _label_row(row: LabelCounts) -> tuple[Any, ...]:
    counts = row.counts
    scores = (f"{score:.1%}" for score in (counts.precision, counts.recall, counts.f1))
    return row.label, counts.num_gold, counts.num_predicted, counts.num_correct, *scores


def _score_bounds(name: str) -> tuple[float, float]:
    return (0.0, float("inf")) if name == "mean_absolute_error" else (-1.0, 1.0) if name in DECIMAL_METRICS else (0.0, 1.0)


def _slice_row(
    data_slice: Slice, metric: str, limits: tuple[float, float], overall: float, lower_is_better: bool = False
) -> dict[str, Any]:
    score, is_small = data_slice.score, data_slice.count < MIN_EXAMPLES
    is_worse = (score.value > overall) == lower_is_better
    verdict = ("worse" if is_worse else "better") if data_slice.is_significant(overall) else ""
    color = {"worse": "two", "better": "three"}.get(verdict, "one")
    return {
        "css_class": "few" if is_small else "",
        "name": data_slice.name,
        "numbers": (format_value(data_slice.count), format_score(metric, score.value), format_interval(metric, score)),
        "chart": whisker(score.low, score.value, score.high, limits, overall, color),
        "verdict": "few examples" if is_small else verdict,
    }
