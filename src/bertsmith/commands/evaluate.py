"""A fine-tuned model and a file with answers to its scores there, and a report of what it gets wrong."""

from typing import Annotated, Any

import msgspec

from ..artifacts import atomic_folder, check_writable, resolve_path, write_json
from ..config import Config, PosInt
from ..console import Console
from ..evaluation.evaluate import Evaluation, evaluate_model
from ..evaluation.metric_names import format_p_value
from ..evaluation.report import render_report
from ..evaluation.summary import EvaluationSummary, build_details, build_scores, summarize
from ..inference.predictor import Predictor, load
from ..inference.runtime import Precision
from ..reports.html import write_page


class Recipe(Config, frozen=True):
    model: Annotated[str, "the folder `finetune` made"]
    data: Annotated[str, "the file to be judged on"]
    columns: Annotated[dict[str, str], "what text, text_b, label ... are called in it; as in training, if none"] = (
        msgspec.field(default_factory=dict)
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False
    against: Annotated[str | None, "another model of the same task, to be compared on the same examples"] = None
    errors: Annotated[PosInt, "how many of the worst mistakes are told"] = 30
    out: Annotated[str | None, "a folder for scores.json and report.html"] = None
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "auto: bf16 on a GPU, fp32 on a CPU"] = "auto"


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """The scores with their intervals; the folder is written whole, over an older report if one is there."""
    screen, out = Console(quiet), check_writable(resolve_path(recipe.out, "out"), "report.html") if recipe.out else None
    (predictor, found, skipped), other = _evaluate(recipe, recipe.model, screen), None
    if recipe.against is not None:
        other = _evaluate(recipe, recipe.against, screen)[1]
    study = summarize(predictor, found, recipe.model, recipe.data, recipe.against, other)
    _print_scores(study, screen)
    left_out = {"skipped": skipped} if recipe.skip_bad else {}
    result = build_scores(study) | left_out
    if out:
        with atomic_folder(out) as folder:
            write_json(folder / "scores.json", build_details(study, recipe.errors) | left_out)
            write_page(folder / "report.html", render_report(study, recipe.errors))
        screen.info(f"{out / 'report.html'} is written; open it in a browser")
        result["out"] = str(out)
    return result


def _evaluate(recipe: Recipe, model: str, console: Console) -> tuple[Predictor, Evaluation, int]:
    """Each model reads the file as its own task does, but for bad rows, of which it skips those it is now told to."""
    predictor = load(model, recipe.device, recipe.precision)
    task = predictor.task = msgspec.structs.replace(predictor.require_task(), skip_bad=recipe.skip_bad)
    if recipe.columns and hasattr(task, "columns"):
        task = predictor.task = msgspec.structs.replace(task, columns=recipe.columns)
    reading = task.read(resolve_path(recipe.data, "data"))
    examples: list[Any] = list(reading)
    if reading.num_skipped:
        console.warn(f"{recipe.data}: {reading.num_skipped:,} rows left out, the first: {reading.errors[0].split('; mend')[0]}")
    return predictor, evaluate_model(predictor, examples), reading.num_skipped


def _print_scores(study: EvaluationSummary, console: Console) -> None:
    rows = [(name, f"{value:.4f}", _format_interval(study, name)) for name, value in study.evaluation.scores.items()]
    console.print_table(
        f"{study.model} on {study.data}: {len(study.evaluation.examples):,} examples", [("", "score", "95%"), *rows]
    )
    if study.comparison:
        found = [(one.name, f"{one.above.value:+.4f}", f"{one.above.low:+.4f} to {one.above.high:+.4f}", format_p_value(one.p))
                 for one in study.comparison.differences]  # fmt: skip
        console.print_table(f"against {study.other_model}", [("", "difference", "95%", "p"), *found])


def _format_interval(study: EvaluationSummary, name: str) -> str:
    one = study.evaluation.intervals.get(name)
    return f"{one.low:.4f} to {one.high:.4f}" if one else ""
