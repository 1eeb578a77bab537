"""`bertsmith evaluate`: score a fine-tuned model on a labelled file, with confidence intervals and an error report."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..artifacts import MANIFEST, atomic_folder, resolve_path
from ..config import Config, PosInt
from ..console import Console
from ..evaluation.evaluate import Evaluation, evaluate_model, warn_of_unknown_labels
from ..evaluation.metric_names import format_p_value
from ..evaluation.report import render_report
from ..evaluation.summary import EvaluationSummary, build_details, build_scores, summarize
from ..inference.engines.base import Backend, Precision
from ..inference.predictor import Predictor, load
from ..reports.html import write_page
from ..tokenization.tables import name_file
from ..writing import check_only, check_writable, lock_output, resolve_output, write_json

REPORT_FILES = ("scores.json", "report.html", MANIFEST)


class Recipe(Config, frozen=True):
    """The model, the file, and a second model to compare with."""

    model: Annotated[str, "checkpoint folder made by `finetune`"]
    data: Annotated[str, "labelled file to evaluate on"]
    columns: Annotated[dict[str, str], "column names: { text = NAME, label = NAME ... }; default: as in training"] = (
        msgspec.field(default_factory=dict)
    )
    encoding: Annotated[str, "encoding of data: utf-8, gb18030, latin-1 ..."] = "utf-8"
    skip_bad: Annotated[bool, "skip invalid rows and count them, instead of stopping"] = False
    against: Annotated[str | None, "another model of the same task to compare with, on the same examples"] = None
    errors: Annotated[PosInt, "number of the worst errors in the report"] = 30
    out: Annotated[str | None, "output folder for scores.json and report.html"] = None
    backend: Annotated[Backend, "torch, onnx (onnxruntime), openvino, or auto: the fastest that can open the model"] = "auto"
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "fp32, bf16, or auto: bf16 on a GPU, and on a CPU with instructions for it"] = "fp32"


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """Scores with 95% confidence intervals; `out` is written atomically and replaces an older report."""
    console, out = Console(quiet), _check_out(recipe) if recipe.out is not None else None
    (predictor, evaluation, skipped), other_evaluation = _evaluate(recipe, recipe.model, console), None
    if recipe.against is not None:
        other_evaluation = _evaluate(recipe, recipe.against, console)[1]
    summary = summarize(predictor, evaluation, recipe.model, name_file(recipe.data), recipe.against, other_evaluation)
    _print_scores(summary, console)
    skipped_count = {"num_skipped": skipped} if recipe.skip_bad else {}
    result = build_scores(summary) | skipped_count
    if out:
        with lock_output(out), atomic_folder(_check_out(recipe)) as folder:
            write_json(folder / "scores.json", build_details(summary, recipe.errors) | skipped_count)
            write_page(folder / "report.html", render_report(summary, recipe.errors))
        console.info(f"wrote {out / 'report.html'}")
        result["out"] = str(out)
    return result


def _check_out(recipe: Recipe) -> Path:
    """The output folder: new, or an older report and nothing else."""
    out = check_only(resolve_output(recipe.out or ""), *REPORT_FILES)
    return out if all((out / name).is_file() for name in REPORT_FILES) else check_writable(out)


def _evaluate(recipe: Recipe, model: str, console: Console) -> tuple[Predictor, Evaluation, int]:
    """Predictor, evaluation and number of skipped rows; the model's task reads the file with this `columns` and `skip_bad`."""
    predictor = load(model, recipe.backend, recipe.precision, recipe.device)
    task = predictor.task = msgspec.structs.replace(predictor.require_task(), skip_bad=recipe.skip_bad)
    if recipe.columns and hasattr(task, "columns"):
        task = predictor.task = msgspec.structs.replace(task, columns=recipe.columns)
    rows = task.read(resolve_path(recipe.data, "data"), recipe.encoding)
    examples: list[Any] = list(rows)
    if rows.num_skipped:
        console.warn(rows.describe_skipped())
    warn_of_unknown_labels(task, examples, console)
    return predictor, evaluate_model(predictor, examples), rows.num_skipped


def _print_scores(summary: EvaluationSummary, console: Console) -> None:
    rows = [(name, f"{value:.4f}", _format_interval(summary, name)) for name, value in summary.evaluation.scores.items()]
    console.print_table(
        f"{summary.model} on {summary.data}: {len(summary.evaluation.examples):,} examples",
        [("metric", "score", "95% CI"), *rows],
    )
    if summary.comparison:
        differences = [
            (row.name, f"{row.difference.value:+.4f}", f"{row.difference.low:+.4f} to {row.difference.high:+.4f}",
             format_p_value(row.p_value))
            for row in summary.comparison.differences
        ]  # fmt: skip
        console.print_table(
            f"compared with {summary.other_model}", [("metric", "difference", "95% CI", "p-value"), *differences]
        )


def _format_interval(summary: EvaluationSummary, name: str) -> str:
    interval = summary.evaluation.intervals.get(name)
    return f"{interval.low:.4f} to {interval.high:.4f}" if interval else ""
