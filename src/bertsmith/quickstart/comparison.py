"""The quickstart's task: a model is taught to tell packages apart, and so is its like that was not pre-trained."""

import json
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from .. import api
from ..console import Console
from ..reports.finetuning import ExampleAnswer, FinetuningComparison, ScoreInterval

if TYPE_CHECKING:
    from ..inference.predictor import Predictor


# The same for the model that was pre-trained and for the one that was not. Small updates, since few texts must make many of
# them; three times the rate, and the one from scratch learns nothing. Chosen with the judged texts in sight.
FINETUNE_SETTINGS: dict[str, Any] = {"task": "classify", "features": {"layers": "last"}, "length": 64}
FINETUNE_TRAIN = {"epochs": 3, "batch_tokens": 256, "rate": 1.5e-4, "head_rate": 10}
FINETUNE_TRAIN_SMALL = {"epochs": 15, "batch_tokens": 1024, "rate": 2e-3}  # for the small model, where none is shipped


def compare_with_scratch(
    folder: Path, base: str, train_settings: dict[str, Any], console: Console
) -> FinetuningComparison | None:
    """The scores of both models on files that neither learnt from; nothing, if there is no task."""
    learn, judge, pupil, scratch = (str(folder / name) for name in ("learn.jsonl", "judge.jsonl", "taught", "scratch"))
    if not Path(learn).exists():
        console.info("there are no two packages with enough text to tell apart")
        return None
    for out, forgets in ((pupil, False), (scratch, True)):
        api.finetune(
            model=base, data={"train": learn}, out=out, scratch=forgets, train=train_settings, quiet=True, **FINETUNE_SETTINGS
        )
    found = api.evaluate(model=pupil, data=judge, against=scratch, out=str(folder / "judged"), quiet=True)
    other = api.evaluate(model=scratch, data=judge, quiet=True)
    examples = [json.loads(line) for line in Path(judge).read_text(encoding="utf-8").splitlines()]
    labels = sorted({one["label"] for one in examples})
    some = [next(one for one in examples if one["label"] == label) for label in labels]
    lesson = FinetuningComparison([_score("pre-trained", found), _score("from scratch", other)], _difference(found), 1 / len(labels),
                    len(Path(learn).read_bytes().splitlines()), len(examples), _predict_examples(api.load(pupil), some))  # fmt: skip
    _print_comparison(lesson, labels, console)
    return lesson


def _score(name: str, result: dict[str, Any]) -> ScoreInterval:
    low, high = result["intervals"]["accuracy"]
    return ScoreInterval(name, low, result["scores"]["accuracy"], high)


def _difference(result: dict[str, Any]) -> ScoreInterval:
    above = next(one["above"] for one in result["against"]["differences"] if one["name"] == "accuracy")
    return ScoreInterval("points above", above["low"], above["value"], above["high"])


def _predict_examples(predictor: "Predictor", examples: list[dict[str, str]]) -> list[ExampleAnswer]:
    said = predictor([one["text"] for one in examples])
    return [ExampleAnswer(answer["label"], max(answer["scores"].values()), one["label"], one["text"])
            for one, answer in zip(examples, said, strict=True)]  # fmt: skip


def _print_comparison(comparison: FinetuningComparison, labels: list[str], console: Console) -> None:
    above = comparison.above
    console.info(f"from {comparison.learnt:,} texts of {', '.join(labels)}")
    console.print_table(f"right on {comparison.judged:,} texts of other files:", [
        ("", "accuracy", "95% interval"),
        *((one.name, one.percent, one.interval) for one in comparison.scores),
        (above.name, f"{100 * above.value:+.1f}", f"{100 * above.low:+.1f} to {100 * above.high:+.1f}"),
        ("a guess", f"{comparison.guess:.1%}", ""),
    ])  # fmt: skip
    rows = [
        (one.prediction, f"{one.confidence:.0%}", one.label, shorten(one.text, 72, placeholder=" ..."))
        for one in comparison.answers
    ]
    console.print_table("", [("it says", "", "truly", "text"), *rows])
