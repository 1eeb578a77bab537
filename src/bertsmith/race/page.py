"""A race as an offline page: the table, scores against sizes, how far apart members are, and what went wrong."""

import math

from ..evaluate import words
from ..evaluate.suite import AVERAGE, Cell
from ..show.dots import Dot, dots
from ..show.page import Html, document, element, note, section, table
from ..show.whisker import scale, whisker
from .table import HEADS, Entry, Race, fact, scientific

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
    return ", ".join(words.title(name) for name in race.metrics.get(task, ()))


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
