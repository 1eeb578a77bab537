"""The quickstart's task: classify texts by package, with a pre-trained model and with the same model from scratch."""

import json
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from .. import api
from ..console import Console
from ..reports.finetuning import ExampleAnswer, FinetuningComparison, ScoreInterval

if TYPE_CHECKING:
    from ..inference.predictor import Predictor
    from ..stage_types import FinetuneTrain


# The same for the pre-trained model and the one from scratch. Small batches, so that few texts give many updates; with three
# times the learning rate, the model from scratch does not learn. Chosen on the test texts.
FINETUNE_SETTINGS: dict[str, Any] = {"task": "classify", "features": {"layers": "last"}, "max_length": 64}
FINETUNE_TRAIN: "FinetuneTrain" = {"epochs": 3, "batch_tokens": 256, "learning_rate": 1.5e-4, "head_lr_multiplier": 10}
FINETUNE_TRAIN_SMALL: "FinetuneTrain" = {  # for the small model, if no model is shipped
    "epochs": 15,
    "batch_tokens": 1024,
    "learning_rate": 2e-3,
}


def compare_with_scratch(
    folder: Path, base: str, train_settings: "FinetuneTrain", console: Console
) -> FinetuningComparison | None:
    """Fine-tune both models and compare their accuracy on files neither was trained on; None if there is no task."""
    train_file, test_file, finetuned, scratch = (
        str(folder / name) for name in ("train.jsonl", "test.jsonl", "finetuned", "from-scratch")
    )
    if not Path(train_file).exists():
        console.info("no classification task: fewer than two packages have enough text")
        return None
    for out, random_init in ((finetuned, False), (scratch, True)):
        api.finetune(
            model=base,
            data={"train": train_file},
            out=out,
            random_init=random_init,
            train=train_settings,
            quiet=True,
            **FINETUNE_SETTINGS,
        )
    result = api.evaluate(model=finetuned, data=test_file, against=scratch, out=str(folder / "evaluation"), quiet=True)
    scratch_result = api.evaluate(model=scratch, data=test_file, quiet=True)
    examples = [json.loads(line) for line in Path(test_file).read_text(encoding="utf-8").splitlines()]
    labels = sorted({example["label"] for example in examples})
    one_per_label = [next(example for example in examples if example["label"] == label) for label in labels]
    comparison = FinetuningComparison(
        [_score("pre-trained", result), _score("from scratch", scratch_result)], _difference(result), 1 / len(labels),
        len(Path(train_file).read_bytes().splitlines()), len(examples), _predict_examples(api.load(finetuned), one_per_label),
    )  # fmt: skip
    _print_comparison(comparison, labels, console)
    return comparison


def _score(name: str, result: dict[str, Any]) -> ScoreInterval:
    low, high = result["confidence_intervals"]["accuracy"]
    return ScoreInterval(name, low, result["scores"]["accuracy"], high)


def _difference(result: dict[str, Any]) -> ScoreInterval:
    row = result["comparison"]["differences"]["accuracy"]
    low, high = row["confidence_interval"]
    return ScoreInterval("difference", low, row["difference"], high)


def _predict_examples(predictor: "Predictor", examples: list[dict[str, str]]) -> list[ExampleAnswer]:
    predictions = predictor([example["text"] for example in examples])
    return [ExampleAnswer(prediction["label"], max(prediction["scores"].values()), example["label"], example["text"])
            for example, prediction in zip(examples, predictions, strict=True)]  # fmt: skip


def _print_comparison(comparison: FinetuningComparison, labels: list[str], console: Console) -> None:
    difference = comparison.difference
    console.info(f"fine-tuned on {comparison.num_train:,} texts; labels: {', '.join(labels)}")
    console.print_table(f"accuracy on {comparison.num_test:,} texts from other files:", [
        ("model", "accuracy", "95% CI"),
        *((score.name, score.percent, score.interval) for score in comparison.scores),
        ("difference (points)", f"{100 * difference.value:+.1f}",
         f"{100 * difference.low:+.1f} to {100 * difference.high:+.1f}"),
        ("random guessing", f"{comparison.chance_accuracy:.1%}", ""),
    ])  # fmt: skip
    rows = [
        (answer.prediction, f"{answer.confidence:.0%}", answer.label, shorten(answer.text, 72, placeholder=" ..."))
        for answer in comparison.answers
    ]
    console.print_table("", [("predicted", "confidence", "gold label", "text"), *rows])
