"""Sections of an evaluation report: per-label scores, confusion matrix, slices, worst mistakes."""

from collections.abc import Sequence
from typing import Any

from ..reports.charts import compute_axis_range, whisker
from ..reports.html import Html, element, format_value, join_html, note, section, table
from .confusion import MAX_LABELS, LabelCounts, truncate_confusion
from .errors import Mistake, TextSpan
from .metric_names import DECIMAL_METRICS, display_name, format_interval, format_score
from .slices import MIN_EXAMPLES, Slice, Slicing
from .summary import EvaluationSummary

MARK_CLASSES = {"true": "kept", "said": "swapped", "both": "masked"}
ANSWER_MISTAKE_KINDS = ("missed", "made up", "partly right", "wrong")  # of question answering
MAX_LISTED_LABELS = 40  # labels in the table before the rest is collapsed


def render_labels(summary: EvaluationSummary) -> list[Html]:
    """Precision, recall and F1 of each label, then the kinds of entity mistakes or the confusion matrix."""
    parts: list[Html] = []
    if summary.label_counts:
        name = "type" if summary.entity_mistakes or summary.task_kind == "tag" else "label"
        header = (name, "true", "answered", "right", "precision", "recall", "F1")
        rows = [_label_row(row) for row in summary.label_counts]
        parts += [element("h3", f"Each {name}"), table(rows[:MAX_LISTED_LABELS], header)]
        if rows[MAX_LISTED_LABELS:]:
            more = element("summary", f"{len(rows) - MAX_LISTED_LABELS:,} more")
            parts.append(element("details", more, table(rows[MAX_LISTED_LABELS:], header)))
    if summary.entity_mistakes:
        parts += [
            element("h3", "What is wrong with entities"),
            table(_entity_mistake_rows(summary), ("fault", "type", "times", "share")),
        ]
    return parts + (render_confusion(summary) if summary.confusion and not summary.entity_mistakes else [])


def render_confusion(summary: EvaluationSummary) -> list[Html]:
    """Gold labels in rows; the color of a wrong cell is its share of its row, relative to the largest such share."""
    assert summary.confusion is not None
    matrix = truncate_confusion(summary.confusion)
    fractions = [[count / max(sum(row), 1) for count in row] for row in matrix.table]
    max_error = max((value for i, row in enumerate(fractions) for j, value in enumerate(row) if i != j), default=0) or 1.0
    header = element("tr", element("th", "true ↓  answered →"), *(element("th", label) for label in matrix.labels))
    rows = []
    for i, (label, counts) in enumerate(zip(matrix.labels, matrix.table, strict=True)):
        cells = [
            _confusion_cell(count, fractions[i][j], fractions[i][j] / (1 if i == j else max_error), i == j)
            for j, count in enumerate(counts)
        ]
        rows.append(element("tr", element("th", label), *cells))
    caption = (
        [note(f"The {MAX_LABELS} labels in most mistakes; {matrix.left_out:,} more are in scores.json.")]
        if matrix.left_out
        else []
    )
    css_class = "heat upright" if len(matrix.labels) > 6 else "heat"
    grid = element("table", element("thead", header), element("tbody", *rows), class_=css_class)
    return [element("h3", "What is taken for what"), *caption, element("div", grid, class_="table")]


def render_slices(summary: EvaluationSummary) -> Html:
    """Score and interval of every slice on one scale, with the score of all examples as reference."""
    name, result = summary.slice_metric
    overall = result.compute_interval()
    scores = [part.score for slicing in summary.slicings for part in slicing.slices if part.count >= MIN_EXAMPLES] + [overall]
    edges = [edge for score in scores for edge in (score.value, score.low, score.high)]
    limits = compute_axis_range(edges, bounds=_score_bounds(name))
    scale = element("span", *(element("span", format_score(name, edge)) for edge in limits), class_="scale")
    columns = (("", None), ("examples", "number"), (display_name(name), "number"), ("95% interval", "number"))
    header_cells = [element("th", text, class_=css_class) for text, css_class in columns]
    header = element("tr", *header_cells, element("th", scale), element("th", ""))
    overall_row = _slice_row(
        Slice("all", len(summary.evaluation.examples), overall),
        name,
        limits,
        overall.value,
        result.lower_is_better,
        is_overall=True,
    )
    body = [
        overall_row,
        *(row for slicing in summary.slicings for row in _slicing_rows(slicing, limits, overall.value, result.lower_is_better)),
    ]
    grid = element("table", element("thead", header), element("tbody", *body))
    caption = (f"{display_name(name).capitalize()} of parts of the examples; the dashed line is all of them together. "
               f"A part is called better or worse only if its interval leaves that line out and it has {MIN_EXAMPLES} examples "
               "or more; of many parts, one in twenty does so by luck.")  # fmt: skip
    return section("Where it goes wrong", note(caption), element("div", grid, class_="table"))


def render_mistakes(summary: EvaluationSummary, max_mistakes: int) -> Html:
    """The `max_mistakes` worst mistakes with their texts."""
    mistakes, count = summary.mistakes, len(summary.evaluation.examples)
    if not mistakes:
        return section("Worst mistakes", note("There are none: every answer is right."))
    order = {
        "classify": "those whose true label seemed least likely",
        "regress": "those furthest off",
        "similar": "those whose rank is furthest off",
        "tag": "sentences with most faults",
        "answer": "the surest of the wrong answers",
        "choose": "those whose right option seemed least likely",
        "generate": "those with the least in common with the truth",
    }[summary.task_kind]
    wrong = "" if summary.task_kind in ("regress", "similar") else f"{len(mistakes):,} of {count:,} are not all right. "
    caption = note(f"{wrong}Here are {order}, {min(max_mistakes, len(mistakes)):,} of them.")
    shown = map(render_mistake, mistakes[:max_mistakes])
    return section("Worst mistakes", caption, render_mark_legend(summary), *shown)


def render_mark_legend(summary: EvaluationSummary) -> Html:
    """The legend of the highlight colors; empty for tasks whose texts are not highlighted."""
    if summary.task_kind == "answer":
        entries = [("kept", "the true answer"), ("swapped", "what was said"), ("masked", "both, overlapping")]
    elif summary.entity_mistakes:
        entries = [("swapped", "missed, or made up, or wrong")]
    else:
        return Html("")
    return element("div", *(element("span", element("mark", name, class_=color)) for color, name in entries), class_="key")


def render_mistake(mistake: Mistake) -> Html:
    """One mistake: its texts, then the gold and the predicted answer with the confidence."""
    has_answers = mistake.truth or mistake.answer
    answers = [("true", mistake.truth), ("said", mistake.answer)] if has_answers else []
    verdict = [element("span", mistake.kind, class_="pill")] if mistake.kind in ANSWER_MISTAKE_KINDS else []
    verdict += [element("span", f"{name}: ", _render_marked(mistake, name, value)) for name, value in answers]
    if mistake.confidence is not None:
        verdict.append(element("span", f"sure to {mistake.confidence:.1%}", class_="note"))
    texts = [element("p", *map(_render_span, spans)) for spans in mistake.texts]
    return element("div", *texts, element("p", *verdict, class_="verdict"), element("small", mistake.place), class_="mistake")


def render_columns(*parts: Sequence[Html]) -> Html:
    """Blocks side by side."""
    return element("div", *(element("div", *part) for part in parts if part), class_="pair")


def _render_marked(mistake: Mistake, name: str, value: str) -> Html:
    """Highlighted, except for lists of entities, where the text itself is highlighted."""
    return (
        element("span", value, class_="note") if mistake.kind == "tags" else element("mark", value, class_=MARK_CLASSES[name])
    )


def _label_row(row: LabelCounts) -> tuple[Any, ...]:
    counts = row.counts
    scores = (f"{score:.1%}" for score in (counts.precision, counts.recall, counts.f1))
    return row.label, counts.num_gold, counts.num_predicted, counts.num_correct, *scores


def _entity_mistake_rows(summary: EvaluationSummary) -> list[tuple[Any, ...]]:
    total = sum(count for _, _, count in summary.entity_mistakes)
    return [(kind, types, count, f"{count / total:.1%}") for kind, types, count in summary.entity_mistakes[:MAX_LABELS]]


def _confusion_cell(count: int, fraction: float, intensity: float, is_diagonal: bool) -> Html:
    return element("td", format_value(count) if count else "·", class_="right" if is_diagonal else "wrong",
                   style=f"--heat:{45 * intensity:.1f}", title=f"{fraction:.1%} of this row")  # fmt: skip


def _score_bounds(name: str) -> tuple[float, float]:
    return (0.0, float("inf")) if name == "mean error" else (-1.0, 1.0) if name in DECIMAL_METRICS else (0.0, 1.0)


def _slicing_rows(slicing: Slicing, limits: tuple[float, float], overall: float, lower_is_better: bool) -> list[Html]:
    title = element("tr", element("td", f"by {slicing.by}", class_="group", colspan=6))
    return [title, *(_slice_row(part, slicing.metric, limits, overall, lower_is_better) for part in slicing.slices)]


def _slice_row(
    data_slice: Slice, metric: str, limits: tuple[float, float], overall: float, lower_is_better: bool, is_overall: bool = False
) -> Html:
    score, is_small = data_slice.score, data_slice.count < MIN_EXAMPLES
    is_worse = (score.value > overall) == lower_is_better
    color = ("two" if is_worse else "three") if data_slice.is_significant(overall) and not is_overall else "one"
    verdict = "few" if is_small else {"two": "worse", "three": "better"}.get(color, "")
    line = whisker(score.low, score.value, score.high, limits, overall, color)
    numbers = (format_value(data_slice.count), format_score(metric, score.value), format_interval(metric, score))
    number_cells = [element("td", text, class_="number") for text in numbers]
    cells = [element("td", data_slice.name), *number_cells, element("td", line), element("td", verdict)]
    return element("tr", *cells, class_="few" if is_small else "best" if is_overall else None)


def _render_span(span: TextSpan) -> Html:
    if not span.mark:
        return join_html(span.text)
    if span.mark in MARK_CLASSES:
        return element("mark", span.text, class_=MARK_CLASSES[span.mark])
    return element("mark", span.text, " ", element("span", span.mark, class_="inside"), class_="swapped")
