"""A race as an SVG file by itself: a rung for each member, the best first, with its average score frozen and tuned."""

import math
from collections.abc import Callable

from ..evaluation import metric_names
from ..evaluation.suite import AVERAGE, Cell
from ..reports.charts import scale, whisker
from ..reports.html import Html, document, element, note, section, table
from ..reports.scatter import Dot, dots
from .table import HEADS, Entry, Race, fact, scientific

WIDE, LEFT, RIGHT, TOP, STEP = 720, 190, 60, 64, 20
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #3a3d40; } .title { font-size: 15px; font-weight: 600; fill: #1b1c1d; }
.page { fill: #ffffff; } .grid { stroke: #ebecee; } .rung { stroke: #c9ccd0; stroke-width: 2; } .soft { fill: #63676c; }
.frozen { fill: #ffffff; stroke: #d9622b; stroke-width: 2; } .tuned { fill: #2a6fd0; } .end { text-anchor: end; }
""".strip()
Rung = tuple[str, dict[str, float]]  # a member, and its average score each way


def ladder(race: Race) -> bytes | None:
    """None where nobody has an average yet."""
    rungs = _rungs(race)
    if not rungs:
        return None
    found = [score for _, scores in rungs for score in scores.values()]
    low, high = 5 * math.floor(min(found) / 5), 5 * math.ceil((max(found) + 0.1) / 5)

    def across(score: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * (score - low) / (high - low)

    bottom = TOP + STEP * len(rungs)
    lines = [shape for score in range(low, high + 1, 5) for shape in _line(across(score), bottom, score)]
    shapes = [shape for number, one in enumerate(rungs) for shape in _drawn(one, TOP + STEP * (number + 0.5), across)]
    title = f"{len(rungs)} rows, {scientific(race.budget)} FLOPs each: average of {', '.join(race.tasks)}"
    page = element("rect", x=0, y=0, width=WIDE, height=bottom + 30, class_="page")
    words = [element("text", title, x=16, y=24, class_="title"), *_legend(race)]
    return element("svg", Html(f"<style>{STYLE}</style>"), page, *lines, *shapes, *words, xmlns="http://www.w3.org/2000/svg",
                   viewBox=f"0 0 {WIDE} {bottom + 30}", width=WIDE, height=bottom + 30, role="img",
                   aria_label=title).encode()  # fmt: skip


def _rungs(race: Race) -> list[Rung]:
    """Those with an average, by the better of their two."""
    rungs = []
    for one in race.entries:
        cells = {way: race.cell(way, one.name, AVERAGE) for way in race.ways}
        scores = {way: 100 * cell.mean for way, cell in cells.items() if cell and not math.isnan(cell.mean)}
        rungs += [(one.name, scores)] if scores else []
    return sorted(rungs, key=lambda rung: -max(rung[1].values()))


def _line(x: float, bottom: float, score: int) -> list[Html]:
    return [
        element("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="grid"),
        element("text", str(score), x=x, y=bottom + 18, text_anchor="middle", class_="soft"),
    ]


def _drawn(rung: Rung, y: float, across: Callable[[float], float]) -> list[Html]:
    name, scores = rung
    places = sorted(across(score) for score in scores.values())
    best = max(scores.values())
    return [
        element("text", name, x=LEFT - 14, y=y + 4, class_="end"),
        element("line", x1=places[0], x2=places[-1], y1=y, y2=y, class_="rung"),
        *(element("circle", cx=across(score), cy=y, r=5, class_=way) for way, score in scores.items()),
        element("text", f"{best:.1f}", x=places[-1] + 10, y=y + 4, class_="soft"),
    ]


def _legend(race: Race) -> list[Html]:
    shapes = []
    for number, way in enumerate(race.ways):
        shapes += [element("circle", cx=LEFT + 90 * number + 6, cy=44, r=5, class_=way),
                   element("text", way, x=LEFT + 90 * number + 18, y=48)]  # fmt: skip
    return shapes


WAYS = {"frozen": "one", "tuned": "two"}
CONTROL = "three"  # the tone of rows that learnt nothing from text
COUNTED = (
    "FLOPs are those of pre-training: the products of matrices of a forward pass, two a multiply-add, times three. "
    "Bits per byte are of held-out text, for models that read from left to right (an unknown word costs eight bits a byte); "
    "pseudo-bits, each token hidden alone with both sides in sight, are another thing and compare only with each other. "
    "Scores are means over seeds of fine-tuning and, behind ±, their deviation, times 100; each member is pre-trained once. "
    "Frozen: a small head on features of an encoder that does not learn. Tuned: all of it learns."
)


def page(race: Race) -> bytes:
    members = len(race.entries)
    lead = f"{members} rows · {len(race.tasks)} tasks · {scientific(race.budget)} FLOPs each"
    faults = [_faults(race)] if any(one.faults for one in race.entries) else []
    scores = [_plots(race), _apart(race)] if race.tasks else []
    return document("The race", lead, [_table(race), *faults, *scores])


def _table(race: Race) -> Html:
    head = ["", *(HEADS[name] for name in race.facts), *(_head(task, way) for task, way in race.columns)]
    rows = [_row(race, one) for one in race.entries]
    told = [note(f"Measured by: {'; '.join(f'{task}: {_measured(race, task)}' for task in race.tasks)}.")] if race.tasks else []
    left = f"{race.left} jobs are still to be done: run the same command again to go on."
    warned = [note(left, "warning")] if race.left else []
    return section("Table", *warned, note(COUNTED), *told, element("div", table(rows, head), class_="race"))


def _row(race: Race, one: Entry) -> list[Html]:
    facts = [element("span", fact(name, one.facts.get(name))) for name in race.facts]
    return [_named(one), *facts, *(_score(race, one, task, way) for task, way in race.columns)]


def _head(task: str, way: str) -> str:
    return element("span", task, element("br"), element("small", way))


def _named(one: Entry) -> Html:
    of = [element("small", f" of {one.of}")] if one.of else []
    return element("span", one.name, *of)


def _measured(race: Race, task: str) -> str:
    return ", ".join(metric_names.title(name) for name in race.metrics.get(task, ()))


def _score(race: Race, one: Entry, task: str, way: str) -> Html:
    cell = race.cell(way, one.name, task)
    best = cell is not None and cell.mean == race.ways[way].best(task)
    return element("b" if best else "span", str(cell or "–"), class_="best" if best else None)


def _plots(race: Race) -> Html:
    drawn = []
    for way, name in (("tuned", "Fine-tuned"), ("frozen", "Frozen, a head on features")):
        if way in race.ways:
            drawn.append(dots(f"{name}: average score against parameters", _dots(race, way), "parameters", _level(race, way)))
    return section(
        "Scores and sizes",
        note("Every member had the same budget, those in green none; arms are one deviation over seeds."),
        *drawn,
    )


def _dots(race: Race, way: str) -> list[Dot]:
    found = []
    for one in race.entries:
        cell, size = race.cell(way, one.name, AVERAGE), one.facts.get("parameters")
        if cell and size and not math.isnan(cell.mean):
            tone = WAYS[way] if one.facts.get("flops") else CONTROL
            found.append(Dot(one.name, size, 100 * cell.mean, tone, 100 * (cell.deviation or 0.0)))
    return found


def _level(race: Race, way: str) -> tuple[str, float] | None:
    """The row that has no parameters at all: always the usual answer."""
    for one in race.entries:
        cell = race.cell(way, one.name, AVERAGE)
        if not one.facts.get("parameters") and cell and not math.isnan(cell.mean):
            return one.name, 100 * cell.mean
    return None


def _apart(race: Race) -> Html:
    """Every column with all members on one scale: what is a difference, and what is seeds."""
    blocks = [_column(race, task, way) for task, way in race.columns]
    told = "Arms are one deviation over seeds each way; where they overlap, a difference may be luck."
    return section("How far apart", note(told), element("div", *blocks, class_="pair"))


def _column(race: Race, task: str, way: str) -> Html:
    cells = [(one.name, cell) for one in race.entries if (cell := race.cell(way, one.name, task)) and not math.isnan(cell.mean)]
    cells.sort(key=lambda pair: -pair[1].mean)
    limits = scale([edge for _, cell in cells for edge in _edges(cell)])
    ends = element("span", *(element("span", f"{100 * edge:.4g}") for edge in limits), class_="scale")
    rows = [
        (name, str(cell), whisker(_edges(cell)[0], cell.mean, _edges(cell)[1], limits, tone=WAYS[way])) for name, cell in cells
    ]
    return element("div", element("h3", f"{task}, {way}"), table(rows, ("", "", ends)))


def _edges(cell: Cell) -> tuple[float, float]:
    return cell.mean - (cell.deviation or 0), cell.mean + (cell.deviation or 0)


def _faults(race: Race) -> Html:
    rows = [(one.name, fault) for one in race.entries for fault in one.faults]
    return section("What went wrong", table(rows, ("member", "why")))
