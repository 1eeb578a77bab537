"""Why a corpus or a run is not well, from its folder: what was seen, what it means, what to try."""

from typing import Annotated, Any

import msgspec

from ..artifacts import named
from ..config import Config
from ..console import Screen
from ..diagnostics.examine import Report, examined
from ..diagnostics.finding import Finding

FIRST = "folder"  # `bertsmith doctor out/bert` says it too


class Recipe(Config, frozen=True):
    """What to look at."""

    folder: Annotated[str, "a corpus, a checkpoint, or a run that was stopped; `bertsmith doctor FOLDER` says it too"]
    corpus: Annotated[str | None, "the text of a run: while it is in progress, or where the text has moved"] = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Says what is found, causes first; nothing is changed."""
    screen = Screen(quiet)
    corpus = named(recipe.corpus, "corpus") if recipe.corpus is not None else None
    report = examined(named(recipe.folder, "folder"), corpus)
    _told(recipe.folder, report, screen)
    findings = [msgspec.to_builtins(one) for one in _sorted(report)]
    notes = len(findings) - report.problems
    return {"folder": recipe.folder, "kind": report.kind, "healthy": not report.problems, "problems": report.problems,
            "notes": notes, "findings": findings, "not_looked_at": report.unseen}  # fmt: skip


def code(result: dict[str, Any]) -> int:
    """The exit code of the command: 1 if there are problems, so that a script stops here."""
    return 0 if result["healthy"] else 1


def _sorted(report: Report) -> list[Finding]:
    """Problems first; within each, as they were found: what may be a cause before what may follow from it."""
    return sorted(report.findings, key=lambda one: one.severity != "problem")


def _told(folder: str, report: Report, screen: Screen) -> None:
    for one in _sorted(report):
        if screen.quiet and one.severity == "problem":
            screen.warn(f"{folder}: {one.name}: {one.seen}")
        screen.table(f"{one.severity}: {one.name}", [("seen", one.seen), ("means", one.means), ("try", _tried(one))])
    for what in report.unseen:
        screen.say(f"not looked at: {what}")
    count = len(report.findings) - report.problems
    notes = f", {count} note{'s' * (count > 1)}" if count else ""
    some = f"{report.problems} problem{'s' * (report.problems > 1)}"
    screen.say(f"{folder} ({report.kind}): {some if report.problems else 'healthy'}{notes}")


def _tried(finding: Finding) -> str:
    return f"{finding.setting}: {finding.way_out}" if finding.setting else finding.way_out
