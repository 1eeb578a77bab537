"""The parts of a report that are tables: labels, what is taken for what, slices and the worst mistakes."""

from collections.abc import Sequence
from typing import Any

from ..reports.charts import scale, whisker
from ..reports.html import Html, element, joined, note, section, shown, table
from . import metric_names
from .confusion import MOST, Row, shortened
from .errors import Mistake, Span
from .slices import FEW, Cut, Slice
from .summary import Study

TONES = {"true": "kept", "said": "swapped", "both": "masked"}
KINDS = ("missed", "made up", "partly right", "wrong")  # of answers from passages
LISTED = 40  # labels in the table before the rest is folded away


def labels(study: Study) -> list[Html]:
    """Precision, recall and F1 of each label, then the confusion table."""
    parts: list[Html] = []
    if study.labels:
        name = "type" if study.faults or study.kind == "tag" else "label"
        head = (name, "true", "answered", "right", "precision", "recall", "F1")
        rows = [_label(row) for row in study.labels]
        parts += [element("h3", f"Each {name}"), table(rows[:LISTED], head)]
        if rows[LISTED:]:
            told = element("summary", f"{len(rows) - LISTED:,} more")
            parts.append(element("details", told, table(rows[LISTED:], head)))
    if study.faults:
        parts += [element("h3", "What is wrong with entities"), table(_faults(study), ("fault", "type", "times", "share"))]
    return parts + (heat(study) if study.tangle and not study.faults else [])


def heat(study: Study) -> list[Html]:
    """True labels in rows; a wrong cell is as strong as its share of its row beside the largest such share."""
    assert study.tangle is not None
    found = shortened(study.tangle)
    shares = [[count / max(sum(row), 1) for count in row] for row in found.table]
    most = max((share for i, row in enumerate(shares) for j, share in enumerate(row) if i != j), default=0) or 1.0
    head = element("tr", element("th", "true ↓  answered →"), *(element("th", label) for label in found.labels))
    rows = []
    for i, (label, counts) in enumerate(zip(found.labels, found.table, strict=True)):
        cells = [_cell(count, shares[i][j], shares[i][j] / (1 if i == j else most), i == j) for j, count in enumerate(counts)]
        rows.append(element("tr", element("th", label), *cells))
    told = [note(f"The {MOST} labels in most mistakes; {found.left_out:,} more are in scores.json.")] if found.left_out else []
    kind = "heat upright" if len(found.labels) > 6 else "heat"
    grid = element("table", element("thead", head), element("tbody", *rows), class_=kind)
    return [element("h3", "What is taken for what"), *told, element("div", grid, class_="table")]


def places(study: Study) -> Html:
    """Every slice with its count and interval beside the score of all."""
    name, measure = study.part
    whole = measure.around()
    shown_ = [one.score for cut in study.cuts for one in cut.slices if one.count >= FEW] + [whole]
    limits = scale([edge for one in shown_ for edge in (one.value, one.low, one.high)], within=_limits(name))
    ends = element("span", *(element("span", metric_names.value(name, edge)) for edge in limits), class_="scale")
    head = element("tr", *(element("th", text, class_=kind) for text, kind in
                           (("", None), ("examples", "number"), (metric_names.title(name), "number"), ("95% interval", "number"))),
                   element("th", ends), element("th", ""))  # fmt: skip
    everything = _slice(Slice("all", len(study.judged.examples), whole), name, limits, whole.value, measure.falls, whole=True)
    body = [everything, *(row for cut in study.cuts for row in _cut(cut, limits, whole.value, measure.falls))]
    grid = element("table", element("thead", head), element("tbody", *body))
    told = (f"{metric_names.title(name).capitalize()} of parts of the examples; the dashed line is all of them together. A part is "
            f"called better or worse only if its interval leaves that line out and it has {FEW} examples or more; of many "
            "parts, one in twenty does so by luck.")  # fmt: skip
    return section("Where it goes wrong", note(told), element("div", grid, class_="table"))


def worst(study: Study, most: int) -> Html:
    """The worst mistakes in full."""
    every, count = study.mistakes, len(study.judged.examples)
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
    }[study.kind]
    wrong = "" if study.kind in ("regress", "similar") else f"{len(every):,} of {count:,} are not all right. "
    return section("Worst mistakes", note(f"{wrong}Here are {told}, {min(most, len(every)):,} of them."), key(study),
                   *map(mistake, every[:most]))  # fmt: skip


def key(study: Study) -> Html:
    """What the colours mean, where texts are marked."""
    if study.kind == "answer":
        entries = [("kept", "the true answer"), ("swapped", "what was said"), ("masked", "both, overlapping")]
    elif study.faults:
        entries = [("swapped", "missed, or made up, or wrong")]
    else:
        return Html("")
    return element("div", *(element("span", element("mark", name, class_=tone)) for tone, name in entries), class_="key")


def mistake(one: Mistake) -> Html:
    """One of them: the text, then what is true and what was said."""
    sure = [element("span", f"sure to {one.confidence:.1%}", class_="note")] if one.confidence is not None else []
    said = [("true", one.truth), ("said", one.answer)] if one.truth or one.answer else []
    verdict = [element("span", one.kind, class_="pill")] if one.kind in KINDS else []
    verdict += [element("span", f"{name}: ", _marked(one, name, value)) for name, value in said]
    texts = [element("p", *map(_span, spans)) for spans in one.texts]
    return element(
        "div", *texts, element("p", *verdict, *sure, class_="verdict"), element("small", one.place), class_="mistake"
    )


def _marked(one: Mistake, name: str, value: str) -> Html:
    """In colour, but for lists of entities: there the text itself is marked."""
    return element("span", value, class_="note") if one.kind == "tags" else element("mark", value, class_=TONES[name])


def _label(row: Row) -> tuple[Any, ...]:
    counts = row.counts
    shares = (f"{share:.1%}" for share in (counts.precision, counts.recall, counts.f1))
    return row.label, counts.there, counts.found, counts.right, *shares


def _faults(study: Study) -> list[tuple[Any, ...]]:
    total = sum(times for _, _, times in study.faults)
    return [(kind, types, times, f"{times / total:.1%}") for kind, types, times in study.faults[:MOST]]


def _cell(count: int, share: float, strong: float, diagonal: bool) -> Html:
    return element("td", shown(count) if count else "·", class_="right" if diagonal else "wrong",
                   style=f"--heat:{45 * strong:.1f}", title=f"{share:.1%} of this row")  # fmt: skip


def _limits(name: str) -> tuple[float, float]:
    return (0.0, float("inf")) if name == "mean error" else (-1.0, 1.0) if name in metric_names.NUMBERS else (0.0, 1.0)


def _cut(cut: Cut, limits: tuple[float, float], whole: float, falls: bool) -> list[Html]:
    title = element("tr", element("td", f"by {cut.by}", class_="group", colspan=6))
    return [title, *(_slice(one, cut.metric, limits, whole, falls) for one in cut.slices)]


def _slice(one: Slice, name: str, limits: tuple[float, float], level: float, falls: bool, whole: bool = False) -> Html:
    worse = (one.score.value > level) == falls
    tone = ("two" if worse else "three") if one.apart(level) and not whole else "one"
    said = "few" if one.count < FEW else {"two": "worse", "three": "better"}.get(tone, "")
    line = whisker(one.score.low, one.score.value, one.score.high, limits, level, tone)
    cells = [element("td", one.name), *(element("td", text, class_="number") for text in
             (shown(one.count), metric_names.value(name, one.score.value), metric_names.between(name, one.score))),
             element("td", line), element("td", said)]  # fmt: skip
    return element("tr", *cells, class_="few" if one.count < FEW else "best" if whole else None)


def _span(span: Span) -> Html:
    if not span.mark:
        return joined(span.text)
    if span.mark in TONES:
        return element("mark", span.text, class_=TONES[span.mark])
    return element("mark", span.text, " ", element("span", span.mark, class_="inside"), class_="swapped")


def columns(*parts: Sequence[Html]) -> Html:
    return element("div", *(element("div", *some) for some in parts if some), class_="pair")
