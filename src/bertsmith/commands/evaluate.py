"""A fine-tuned model and a file with answers to its scores there, and a report of what it gets wrong."""

from typing import Annotated, Any

import msgspec

from ..artifacts import named, new_folder, vacant, write_json
from ..config import Config, Count
from ..console import Screen
from ..evaluation.evaluate import Judged, judged
from ..evaluation.metric_names import chance
from ..evaluation.report import report
from ..evaluation.summary import Study, details, scores, studied
from ..inference.predictor import Predictor, load
from ..inference.runtime import Precision
from ..reports.html import write


class Recipe(Config, frozen=True):
    model: Annotated[str, "the folder `finetune` made"]
    data: Annotated[str, "the file to be judged on"]
    columns: Annotated[dict[str, str], "what text, text_b, label ... are called in it; as in training, if none"] = (
        msgspec.field(default_factory=dict)
    )
    skip_bad: Annotated[bool, "leave out rows that cannot be used, and count them"] = False
    against: Annotated[str | None, "another model of the same task, to be compared on the same examples"] = None
    errors: Annotated[Count, "how many of the worst mistakes are told"] = 30
    out: Annotated[str | None, "a folder for scores.json and report.html"] = None
    device: Annotated[str, "auto, cpu, cuda or cuda:0"] = "auto"
    precision: Annotated[Precision, "auto: bf16 on a GPU, fp32 on a CPU"] = "auto"


def run(recipe: Recipe, quiet: bool = False) -> dict[str, Any]:
    """The scores with their intervals; the folder is written whole, over an older report if one is there."""
    screen, out = Screen(quiet), vacant(named(recipe.out, "out"), "report.html") if recipe.out else None
    (predictor, found, skipped), other = _judged(recipe, recipe.model, screen), None
    if recipe.against is not None:
        other = _judged(recipe, recipe.against, screen)[1]
    study = studied(predictor, found, recipe.model, recipe.data, recipe.against, other)
    _told(study, screen)
    left_out = {"skipped": skipped} if recipe.skip_bad else {}
    result = scores(study) | left_out
    if out:
        with new_folder(out) as folder:
            write_json(folder / "scores.json", details(study, recipe.errors) | left_out)
            write(folder / "report.html", report(study, recipe.errors))
        screen.say(f"{out / 'report.html'} is written; open it in a browser")
        result["out"] = str(out)
    return result


def _judged(recipe: Recipe, model: str, screen: Screen) -> tuple[Predictor, Judged, int]:
    """Each model reads the file as its own task does, but for bad rows, of which it skips those it is now told to."""
    predictor = load(model, recipe.device, recipe.precision)
    task = predictor.task = msgspec.structs.replace(predictor.taught(), skip_bad=recipe.skip_bad)
    if recipe.columns and hasattr(task, "columns"):
        task = predictor.task = msgspec.structs.replace(task, columns=recipe.columns)
    reading = task.read(named(recipe.data, "data"))
    examples: list[Any] = list(reading)
    if reading.skipped:
        screen.warn(f"{recipe.data}: {reading.skipped:,} rows left out, the first: {reading.faults[0].split('; mend')[0]}")
    return predictor, judged(predictor, examples), reading.skipped


def _told(study: Study, screen: Screen) -> None:
    rows = [(name, f"{value:.4f}", _range(study, name)) for name, value in study.judged.scores.items()]
    screen.table(f"{study.model} on {study.data}: {len(study.judged.examples):,} examples", [("", "score", "95%"), *rows])
    if study.compared:
        found = [(one.name, f"{one.above.value:+.4f}", f"{one.above.low:+.4f} to {one.above.high:+.4f}", chance(one.p))
                 for one in study.compared.differences]  # fmt: skip
        screen.table(f"against {study.against}", [("", "difference", "95%", "p"), *found])


def _range(study: Study, name: str) -> str:
    one = study.judged.intervals.get(name)
    return f"{one.low:.4f} to {one.high:.4f}" if one else ""
