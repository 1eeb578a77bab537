"""Why a corpus or a run is not well, from its folder: what was seen, what it means, what to try."""

from typing import Annotated, Any

import msgspec

from ..artifacts import resolve_path
from ..config import Config
from ..console import Console
from ..diagnostics.examine import DiagnosticReport, examine_folder
from ..diagnostics.finding import Finding

FIRST = "folder"  # `bertsmith doctor out/bert` says it too


class Recipe(Config, frozen=True):
    """What to look at."""

    folder: Annotated[str, "a corpus, a checkpoint, or a run that was stopped; `bertsmith doctor FOLDER` says it too"]
    corpus: Annotated[str | None, "the text of a run: while it is in progress, or where the text has moved"] = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Says what is found, causes first; nothing is changed."""
    screen = Console(quiet)
    corpus = resolve_path(recipe.corpus, "corpus") if recipe.corpus is not None else None
    report = examine_folder(resolve_path(recipe.folder, "folder"), corpus)
    _print_report(recipe.folder, report, screen)
    findings = [msgspec.to_builtins(one) for one in _sort_findings(report)]
    notes = len(findings) - report.num_problems
    return {"folder": recipe.folder, "kind": report.kind, "healthy": not report.num_problems, "problems": report.num_problems,
            "notes": notes, "findings": findings, "not_looked_at": report.not_checked}  # fmt: skip


def code(result: dict[str, Any]) -> int:
    """The exit code of the command: 1 if there are problems, so that a script stops here."""
    return 0 if result["healthy"] else 1


def _sort_findings(report: DiagnosticReport) -> list[Finding]:
    """Problems first; within each, as they were found: what may be a cause before what may follow from it."""
    return sorted(report.findings, key=lambda one: one.severity != "problem")


def _print_report(folder: str, report: DiagnosticReport, console: Console) -> None:
    for one in _sort_findings(report):
        if console.quiet and one.severity == "problem":
            console.warn(f"{folder}: {one.name}: {one.seen}")
        console.print_table(
            f"{one.severity}: {one.name}", [("seen", one.seen), ("means", one.means), ("try", _format_advice(one))]
        )
    for what in report.not_checked:
        console.info(f"not looked at: {what}")
    count = len(report.findings) - report.num_problems
    notes = f", {count} note{'s' * (count > 1)}" if count else ""
    some = f"{report.num_problems} problem{'s' * (report.num_problems > 1)}"
    console.info(f"{folder} ({report.kind}): {some if report.num_problems else 'healthy'}{notes}")


def _format_advice(finding: Finding) -> str:
    return f"{finding.setting}: {finding.way_out}" if finding.setting else finding.way_out
