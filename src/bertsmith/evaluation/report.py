"""The report of an evaluation: one page, the numbers first, then what goes wrong, where, and how sure the model is of it."""

import math
from pathlib import Path

from ..metrics.calibration import Bin
from ..reports.charts import HALF, Series, lines
from ..reports.html import Html, document, element, note, section, shown, table, tiles
from . import metric_names
from .calibration import Belief, Calibration
from .report_tables import columns, labels, mistake, places, worst
from .slices import weakest
from .summary import Study

FLIPS = 8  # examples told that only one of two models answers right


def report(study: Study, most: int = 30) -> bytes:
    """The page, with the `most` worst mistakes."""
    parts = [headline(study)]
    if study.compared:
        parts.append(against(study))
    if wrong := labels(study):
        parts.append(section("What goes wrong", *wrong))
    if study.cuts:
        parts.append(places(study))
    if study.calibration:
        parts.append(belief(study.calibration))
    lead = f"{study.kind} · {study.data} · {len(study.judged.examples):,} examples"
    return document(f"How good {Path(study.model).name} is", lead, [*parts, worst(study, most)])


def headline(study: Study) -> Html:
    """The scores as tiles, what stands out in sentences, and all of them as a table."""
    judged, main = study.judged, study.main
    order = [main, *(name for name in judged.intervals if name != main and not _said_already(study, name))]
    facts = [
        (metric_names.title(name), metric_names.value(name, judged.scores[name]), _about(study, name)) for name in order[:4]
    ]
    rows = [(metric_names.title(name), metric_names.value(name, value), _range(study, name), metric_names.meaning(name))
            for name, value in judged.scores.items()]  # fmt: skip
    every = table(rows, ("score", "value", "95% interval", "")) if len(rows) > len(facts) else Html("")
    told = element("details", element("summary", "Every score"), every) if every else Html("")
    found = element("ul", *(element("li", text) for text in findings(study)), class_="findings")
    return section("Scores", tiles(facts), found, told)


def findings(study: Study) -> list[str]:
    """What a reader should know before any table, in sentences."""
    name, measure = study.part
    told = []
    if study.usual:
        label, share = study.usual
        told.append(f"Always answering “{label}” would be right {share:.1%} of the time.")
    for by, one in weakest(study.cuts, measure.score, measure.falls)[:2]:
        score = f"{metric_names.title(name)} {metric_names.value(name, one.score.value)}"
        told.append(
            f"Weakest by {by}, “{one.name}”: {score} on {one.count:,} examples, {metric_names.value(name, measure.score)} on all."
        )
    if study.faults:
        kind, types, times = study.faults[0]
        told.append(f"The most frequent fault of {sum(f[2] for f in study.faults):,}: {kind} ({types}), {times:,} times.")
    elif study.tangle and (pairs := study.tangle.worst(1)):
        true, said, times = pairs[0]
        told.append(f"The most frequent mistake: “{true}” taken for “{said}”, {times:,} times.")
    return told + _trust(study.calibration)


def against(study: Study) -> Html:
    """Both models side by side, and whether chance alone could have put them apart."""
    assert study.compared is not None
    found, other = study.compared, Path(study.against or "").name
    mine = Path(study.model).name
    mine, other = (mine, other) if mine != other else (study.model, str(study.against))
    head = ["score", mine, other, "difference", "95% interval", "p, paired bootstrap"]
    rows = [[metric_names.title(one.name), metric_names.value(one.name, one.score), metric_names.value(one.name, one.other),
             _signed(one.name, one.above.value), f"{_signed(one.name, one.above.low)} to {_signed(one.name, one.above.high)}",
             metric_names.chance(one.p)] for one in found.differences]  # fmt: skip
    if any(one.exact_p is not None for one in found.differences):
        head.append("p, McNemar")
        rows = [[*row, "" if one.exact_p is None else metric_names.chance(one.exact_p)]
                for row, one in zip(rows, found.differences, strict=True)]  # fmt: skip
    parts = [note(_verdict(study, mine, other)), table(rows, head)]
    if found.both is not None:
        names = ("both are right", f"only {mine} is right", f"only {other} is right", "neither is right")
        counts = (found.both, found.only, found.only_other, found.neither)
        facts = [(name, count, "") for name, count in zip(names, counts, strict=True)]
        parts += [element("h3", "Example by example"), tiles(facts), *_flips(study, other)]
    return section(f"Against {other}", *parts)


def belief(found: Calibration) -> Html:
    """The reliability diagram, and how far off confidence is."""
    moved = found.before if found.temperature not in (None, 1.0) else None
    series = [Series("with the temperature" if moved else "this model", _points(found.after), "dots")]
    series += [Series("without", _points(moved), "dots")] if moved else []
    series.append(Series("right as often as said", [(0.0, 0.0), (1.0, 1.0)]))
    chart = lines("How often right, by how sure", series, "confidence", zero=True, wide=HALF)
    both = {"this model": found.after} if not moved else {"without": moved, f"temperature {found.temperature:.3f}": found.after}
    numbers = [("expected calibration error", *(one.error for one in both.values()))]
    if found.after.loss is not None:
        numbers.append(("nats a true answer costs", *(one.loss for one in both.values())))
    bins = [(f"{one.low:.0%}–{one.high:.0%}", one.count, f"{one.confidence:.1%}", f"{one.accuracy:.1%}")
            for one in found.after.bins]  # fmt: skip
    told = "Points below the line: the model is surer than it is right. A bin of few answers may stand anywhere."
    side = [table(numbers, ("", *both)), element("h3", "Answers by confidence")]
    return section(
        "How sure it is", note(told), columns([chart], [*side, table(bins, ("confidence", "answers", "mean", "right"))])
    )


def _points(found: Belief) -> list[tuple[float, float]]:
    return [(one.confidence, one.accuracy) for one in found.bins]


def _about(study: Study, name: str) -> str:
    return f"{_range(study, name)} · {metric_names.meaning(name)}".strip(" ·–")


def _range(study: Study, name: str) -> str:
    found = study.judged.intervals.get(name)
    return metric_names.between(name, found) if found else "–"


def _said_already(study: Study, name: str) -> bool:
    """Of one label each, micro F1 is accuracy by another name; single types have their table."""
    return "." in name or (name == "f1_micro" and study.main == "accuracy")


def _trust(found: Calibration | None) -> list[str]:
    if found is None:
        return []
    sure, hit, count = _mean(found.after.bins)
    if count < 50 or abs(sure - hit) < 0.02:
        return []
    return [
        f"It is {'surer' if sure > hit else 'less sure'} than it should be: {sure:.1%} on average, right {hit:.1%} of times."
    ]


def _mean(bins: list[Bin]) -> tuple[float, float, int]:
    count = sum(one.count for one in bins)
    sure, hit = (sum(getattr(one, name) * one.count for one in bins) / count for name in ("confidence", "accuracy"))
    return sure, hit, count


def _verdict(study: Study, mine: str, other: str) -> str:
    assert study.compared is not None
    one = next(d for d in study.compared.differences if d.name == study.main)
    name, p = metric_names.title(one.name), one.p if one.exact_p is None else one.exact_p
    if math.isnan(p) or p >= 0.05:
        return f"By {name} the two cannot be told apart on these examples: chance alone would do this (p = {metric_names.chance(p)})."
    better = mine if one.above.value > 0 else other
    return (
        f"By {name} {better} is better, by more than chance would do (p {'= ' if p >= 0.001 else ''}{metric_names.chance(p)})."
    )


def _signed(name: str, score: float) -> str:
    text = metric_names.value(name, abs(score))
    return text if text == "–" or not score else f"{'+' if score > 0 else '−'}{text}"


def _flips(study: Study, other: str) -> list[Html]:
    """The worst of the mistakes that only this model makes."""
    assert study.compared is not None
    lost = {study.judged.examples[i].place for i in study.compared.lost}
    told = [one for one in study.mistakes if one.place in lost][:FLIPS]
    if not told:
        return []
    summary = element("summary", f"What {other} gets right and this model does not ({shown(len(lost))})")
    return [element("details", summary, *map(mistake, told))]
