"""The parts of a report that are tables: labels, what is taken for what, slices and the worst mistakes."""

from collections.abc import Sequence
from typing import Any

from ..reports.charts import compute_axis_range, whisker
from ..reports.html import Html, element, format_value, join_html, note, section, table
from . import metric_names
from .confusion import MAX_LABELS, LabelCounts, truncate_confusion
from .errors import Mistake, TextSpan
from .slices import MIN_EXAMPLES, Slice, Slicing
from .summary import EvaluationSummary

MARK_CLASSES = {"true": "kept", "said": "swapped", "both": "masked"}
ANSWER_MISTAKE_KINDS = ("missed", "made up", "partly right", "wrong")  # of answers from passages
MAX_LISTED_LABELS = 40  # labels in the table before the rest is folded away


def render_labels(summary: EvaluationSummary) -> list[Html]:
    """Precision, recall and F1 of each label, then the confusion table."""
    parts: list[Html] = []
    if summary.label_counts:
        name = "type" if summary.entity_mistakes or summary.task_kind == "tag" else "label"
        head = (name, "true", "answered", "right", "precision", "recall", "F1")
        rows = [_label_row(row) for row in summary.label_counts]
        parts += [element("h3", f"Each {name}"), table(rows[:MAX_LISTED_LABELS], head)]
        if rows[MAX_LISTED_LABELS:]:
            told = element("summary", f"{len(rows) - MAX_LISTED_LABELS:,} more")
            parts.append(element("details", told, table(rows[MAX_LISTED_LABELS:], head)))
    if summary.entity_mistakes:
        parts += [
            element("h3", "What is wrong with entities"),
            table(_entity_mistake_rows(summary), ("fault", "type", "times", "share")),
        ]
    return parts + (render_confusion(summary) if summary.confusion and not summary.entity_mistakes else [])


def render_confusion(summary: EvaluationSummary) -> list[Html]:
    """True labels in rows; a wrong cell is as strong as its share of its row beside the largest such share."""
    assert summary.confusion is not None
    found = truncate_confusion(summary.confusion)
    shares = [[count / max(sum(row), 1) for count in row] for row in found.table]
    most = max((share for i, row in enumerate(shares) for j, share in enumerate(row) if i != j), default=0) or 1.0
    head = element("tr", element("th", "true ↓  answered →"), *(element("th", label) for label in found.labels))
    rows = []
    for i, (label, counts) in enumerate(zip(found.labels, found.table, strict=True)):
        cells = [
            _confusion_cell(count, shares[i][j], shares[i][j] / (1 if i == j else most), i == j)
            for j, count in enumerate(counts)
        ]
        rows.append(element("tr", element("th", label), *cells))
    told = (
        [note(f"The {MAX_LABELS} labels in most mistakes; {found.left_out:,} more are in scores.json.")]
        if found.left_out
        else []
    )
    kind = "heat upright" if len(found.labels) > 6 else "heat"
    grid = element("table", element("thead", head), element("tbody", *rows), class_=kind)
    return [element("h3", "What is taken for what"), *told, element("div", grid, class_="table")]


def render_slices(summary: EvaluationSummary) -> Html:
    """Every slice with its count and interval beside the score of all."""
    name, measure = summary.slice_metric
    whole = measure.compute_interval()
    shown_ = [one.score for cut in summary.slicings for one in cut.slices if one.count >= MIN_EXAMPLES] + [whole]
    limits = compute_axis_range([edge for one in shown_ for edge in (one.value, one.low, one.high)], bounds=_score_bounds(name))
    ends = element("span", *(element("span", metric_names.format_score(name, edge)) for edge in limits), class_="scale")
    head = element("tr", *(element("th", text, class_=kind) for text, kind in
                           (("", None), ("examples", "number"), (metric_names.display_name(name), "number"), ("95% interval", "number"))),
                   element("th", ends), element("th", ""))  # fmt: skip
    everything = _slice_row(
        Slice("all", len(summary.evaluation.examples), whole),
        name,
        limits,
        whole.value,
        measure.lower_is_better,
        is_overall=True,
    )
    body = [
        everything,
        *(row for cut in summary.slicings for row in _slicing_rows(cut, limits, whole.value, measure.lower_is_better)),
    ]
    grid = element("table", element("thead", head), element("tbody", *body))
    told = (f"{metric_names.display_name(name).capitalize()} of parts of the examples; the dashed line is all of them together. A part is "
            f"called better or worse only if its interval leaves that line out and it has {MIN_EXAMPLES} examples or more; of many "
            "parts, one in twenty does so by luck.")  # fmt: skip
    return section("Where it goes wrong", note(told), element("div", grid, class_="table"))


def render_mistakes(summary: EvaluationSummary, max_mistakes: int) -> Html:
    """The worst mistakes in full."""
    every, count = summary.mistakes, len(summary.evaluation.examples)
    if not every:
        return section("Worst mistakes", note("There are none: every answer is right."))
    told = {
        "classify": "those whose true label seemed least likely",
        "regress": "those furthest off",
        "similar": "those whose rank is furthest off",
        "tag": "sentences with most faults",
        "answer": "the surest of the wrong answers",
        "choose": "those whose right option seemed least likely",
        "generate": "those with the least in common with the truth",
    }[summary.task_kind]
    wrong = "" if summary.task_kind in ("regress", "similar") else f"{len(every):,} of {count:,} are not all right. "
    return section("Worst mistakes", note(f"{wrong}Here are {told}, {min(max_mistakes, len(every)):,} of them."), render_mark_legend(summary),
                   *map(render_mistake, every[:max_mistakes]))  # fmt: skip


def render_mark_legend(summary: EvaluationSummary) -> Html:
    """What the colours mean, where texts are marked."""
    if summary.task_kind == "answer":
        entries = [("kept", "the true answer"), ("swapped", "what was said"), ("masked", "both, overlapping")]
    elif summary.entity_mistakes:
        entries = [("swapped", "missed, or made up, or wrong")]
    else:
        return Html("")
    return element("div", *(element("span", element("mark", name, class_=tone)) for tone, name in entries), class_="key")


def render_mistake(mistake: Mistake) -> Html:
    """One of them: the text, then what is true and what was said."""
    sure = [element("span", f"sure to {mistake.confidence:.1%}", class_="note")] if mistake.confidence is not None else []
    said = [("true", mistake.truth), ("said", mistake.answer)] if mistake.truth or mistake.answer else []
    verdict = [element("span", mistake.kind, class_="pill")] if mistake.kind in ANSWER_MISTAKE_KINDS else []
    verdict += [element("span", f"{name}: ", _render_marked(mistake, name, value)) for name, value in said]
    texts = [element("p", *map(_render_span, spans)) for spans in mistake.texts]
    return element(
        "div", *texts, element("p", *verdict, *sure, class_="verdict"), element("small", mistake.place), class_="mistake"
    )


def _render_marked(mistake: Mistake, name: str, value: str) -> Html:
    """In colour, but for lists of entities: there the text itself is marked."""
    return (
        element("span", value, class_="note") if mistake.kind == "tags" else element("mark", value, class_=MARK_CLASSES[name])
    )


def _label_row(row: LabelCounts) -> tuple[Any, ...]:
    counts = row.counts
    shares = (f"{share:.1%}" for share in (counts.precision, counts.recall, counts.f1))
    return row.label, counts.there, counts.found, counts.right, *shares


def _entity_mistake_rows(summary: EvaluationSummary) -> list[tuple[Any, ...]]:
    total = sum(times for _, _, times in summary.entity_mistakes)
    return [(kind, types, times, f"{times / total:.1%}") for kind, types, times in summary.entity_mistakes[:MAX_LABELS]]


def _confusion_cell(count: int, fraction: float, intensity: float, is_diagonal: bool) -> Html:
    return element("td", format_value(count) if count else "·", class_="right" if is_diagonal else "wrong",
                   style=f"--heat:{45 * intensity:.1f}", title=f"{fraction:.1%} of this row")  # fmt: skip


def _score_bounds(name: str) -> tuple[float, float]:
    return (0.0, float("inf")) if name == "mean error" else (-1.0, 1.0) if name in metric_names.DECIMAL_METRICS else (0.0, 1.0)


def _slicing_rows(slicing: Slicing, limits: tuple[float, float], overall: float, lower_is_better: bool) -> list[Html]:
    title = element("tr", element("td", f"by {slicing.by}", class_="group", colspan=6))
    return [title, *(_slice_row(one, slicing.metric, limits, overall, lower_is_better) for one in slicing.slices)]


def _slice_row(
    data_slice: Slice, metric: str, limits: tuple[float, float], overall: float, lower_is_better: bool, is_overall: bool = False
) -> Html:
    worse = (data_slice.score.value > overall) == lower_is_better
    tone = ("two" if worse else "three") if data_slice.is_significant(overall) and not is_overall else "one"
    said = "few" if data_slice.count < MIN_EXAMPLES else {"two": "worse", "three": "better"}.get(tone, "")
    line = whisker(data_slice.score.low, data_slice.score.value, data_slice.score.high, limits, overall, tone)
    cells = [element("td", data_slice.name), *(element("td", text, class_="number") for text in
             (format_value(data_slice.count), metric_names.format_score(metric, data_slice.score.value), metric_names.format_interval(metric, data_slice.score))),
             element("td", line), element("td", said)]  # fmt: skip
    return element("tr", *cells, class_="few" if data_slice.count < MIN_EXAMPLES else "best" if is_overall else None)


def _render_span(span: TextSpan) -> Html:
    if not span.mark:
        return join_html(span.text)
    if span.mark in MARK_CLASSES:
        return element("mark", span.text, class_=MARK_CLASSES[span.mark])
    return element("mark", span.text, " ", element("span", span.mark, class_="inside"), class_="swapped")


def render_columns(*parts: Sequence[Html]) -> Html:
    return element("div", *(element("div", *some) for some in parts if some), class_="pair")
