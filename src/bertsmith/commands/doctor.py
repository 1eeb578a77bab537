"""`bertsmith doctor`: diagnose a corpus, a run or a checkpoint: observations, explanations, suggestions."""

from typing import Annotated, Any

import msgspec

from ..artifacts import resolve_path
from ..config import Config
from ..console import Console
from ..diagnostics.examine import DiagnosticReport, examine_folder
from ..diagnostics.finding import Finding


class Recipe(Config, frozen=True):
    """The folder to examine."""

    folder: Annotated[str, "a corpus, a checkpoint or an unfinished run; also as `bertsmith doctor FOLDER`"]
    corpus: Annotated[str | None, "corpus of the run, if it is in progress or its corpus has moved"] = None


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Print the findings, problems first, and return them; nothing in the folder is changed."""
    console = Console(quiet)
    corpus = resolve_path(recipe.corpus, "corpus") if recipe.corpus is not None else None
    report = examine_folder(resolve_path(recipe.folder, "folder"), corpus)
    _print_report(recipe.folder, report, console)
    findings = [msgspec.to_builtins(finding) for finding in _sort_findings(report)]
    notes = len(findings) - report.num_problems
    return {"folder": recipe.folder, "kind": report.kind, "healthy": not report.num_problems, "problems": report.num_problems,
            "notes": notes, "findings": findings, "not_checked": report.not_checked}  # fmt: skip


def code(result: dict[str, Any]) -> int:
    """Exit code of the command: 1 if there are problems, so that a script stops here."""
    return 0 if result["healthy"] else 1


def _sort_findings(report: DiagnosticReport) -> list[Finding]:
    """Problems before notes; within each, in the order they were found: possible causes before their consequences."""
    return sorted(report.findings, key=lambda finding: finding.severity != "problem")


def _print_report(folder: str, report: DiagnosticReport, console: Console) -> None:
    for finding in _sort_findings(report):
        if console.quiet and finding.severity == "problem":
            console.warn(f"{folder}: {finding.name}: {finding.observation}")
        console.print_table(
            f"{finding.severity}: {finding.name}",
            [
                ("observation", finding.observation),
                ("explanation", finding.explanation),
                ("suggestion", _format_suggestion(finding)),
            ],
        )
    for item in report.not_checked:
        console.info(f"not checked: {item}")
    num_notes = len(report.findings) - report.num_problems
    notes = f", {num_notes} note{'s' * (num_notes > 1)}" if num_notes else ""
    problems = f"{report.num_problems} problem{'s' * (report.num_problems > 1)}"
    console.info(f"{folder} ({report.kind}): {problems if report.num_problems else 'healthy'}{notes}")


def _format_suggestion(finding: Finding) -> str:
    return f"{finding.setting}: {finding.suggestion}" if finding.setting else finding.suggestion
