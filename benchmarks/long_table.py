"""Results of the long-document experiment, folds pooled: scores of each arm with intervals, and paired comparisons."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from bertsmith.artifacts import read_json
from bertsmith.evaluation.evaluate import Evaluation
from bertsmith.evaluation.significance import Difference, compare_evaluations
from bertsmith.tasks import QuestionAnswering, TextClassification
from bertsmith.tasks.classification import ClassificationPrediction
from bertsmith.tasks.question_answering import QuestionAnsweringPrediction

from .long_arms import ARMS, BEFORE_STEP, MLM_STEP, predictions_path, result_path
from .long_folds import fold_path

Row = tuple[str, str, str, str, str]
DATASETS: dict[str, tuple[Any, Any]] = {
    "reviews": (TextClassification(), ClassificationPrediction),
    "covid": (QuestionAnswering(), QuestionAnsweringPrediction),
}


def pool_folds(out: Path, num_folds: Mapping[str, int]) -> dict[str, Any]:
    """From the files in `out`: scores of `arms`, comparisons of `pairs` on common folds, and MLM losses (`mlm`)."""
    table: dict[str, Any] = {"mlm": _mlm_losses(out), "arms": {}, "pairs": []}
    for dataset, arms in ARMS.items():
        finished = {arm: folds for arm in arms if (folds := _finished_folds(out, dataset, arm, num_folds[dataset]))}
        for arm, folds in finished.items():
            evaluation = evaluate_arm(out, dataset, arm, folds)
            scores = {name: asdict(interval) for name, interval in evaluation.intervals.items()}
            table["arms"][f"{dataset} {arm}"] = {"folds": sorted(folds), "examples": len(evaluation.examples), **scores}
        for arm, other in combinations(finished, 2):
            if common := finished[arm] & finished[other]:
                table["pairs"].append(_compare_arms(out, dataset, (arm, other), common))
    return table


def evaluate_arm(out: Path, dataset: str, arm: str, folds: set[int]) -> Evaluation:
    """Evaluation of an arm's predictions on the test files of these folds, taken together."""
    task, prediction_type = DATASETS[dataset]
    examples, predictions = [], []
    for fold in sorted(folds):
        lines = predictions_path(out, f"{dataset}-{arm}-{fold}").read_text(encoding="utf-8").splitlines()
        for line, example in zip(lines, task.read(fold_path(out, dataset, fold, "test")), strict=True):
            if task.is_labeled(example):
                examples.append(example)
                predictions.append(msgspec.json.decode(line, type=prediction_type))
    if isinstance(task, TextClassification):
        task = TextClassification(labels=tuple(predictions[0].scores))
    return Evaluation(task, examples, predictions, task.compute_metrics(predictions, examples))


def format_rows(table: dict[str, Any]) -> list[Row]:
    """A row for the MLM losses, for each arm without a partner, and for each pair of arms."""
    paired = {f"{pair['dataset']} {arm}" for pair in table["pairs"] for arm in pair["arms"]}
    unpaired = [_arm_row(name, scores) for name, scores in table["arms"].items() if name not in paired]
    return [*_mlm_rows(table["mlm"]), *unpaired, *(_pair_row(pair) for pair in table["pairs"])]


def _finished_folds(out: Path, dataset: str, arm: str, num_folds: int) -> set[int]:
    """Folds whose step has ended."""
    return {fold for fold in range(num_folds) if result_path(out, f"{dataset}-{arm}-{fold}").exists()}


def _compare_arms(out: Path, dataset: str, arms: tuple[str, str], folds: set[int]) -> dict[str, Any]:
    evaluations = [evaluate_arm(out, dataset, arm, folds) for arm in arms]
    metric = evaluations[0].task.primary_metric
    differences: list[Difference] = compare_evaluations(*evaluations).differences
    return {"dataset": dataset, "arms": arms, "folds": sorted(folds), "examples": len(evaluations[0].examples),
            "metric": metric, "intervals": [asdict(evaluation.intervals[metric]) for evaluation in evaluations],
            "differences": {difference.name: asdict(difference.difference)
                            | {"p_value": difference.p_value, "mcnemar_p_value": difference.mcnemar_p_value}
                            for difference in differences}}  # fmt: skip


def _mlm_losses(out: Path) -> dict[str, Any]:
    """MLM results before and after continued training; {} until both are done."""
    paths = [result_path(out, name) for name in (BEFORE_STEP, MLM_STEP)]
    results = [read_json(path) for path in paths] if all(path.exists() for path in paths) else []
    return {name: result for name, result in zip((BEFORE_STEP, MLM_STEP), results, strict=False) if "valid_loss" in result}


def _mlm_rows(losses: dict[str, Any]) -> list[Row]:
    if len(losses) < 2:
        return []
    before, after = (losses[name]["valid_loss"] for name in (BEFORE_STEP, MLM_STEP))
    tokens, speed = losses[MLM_STEP]["tokens"], losses[MLM_STEP]["tokens_per_second"]
    label = f"MLM loss after {tokens:,} tokens ({speed:,.0f} tokens/s)"
    return [(label, f"{after:.4f}", f"before {before:.4f}", f"{after - before:+.4f}", "below 0")]


def _arm_row(name: str, arm: dict[str, Any]) -> Row:
    metric = "accuracy" if "accuracy" in arm else "f1"
    return f"{name}, {metric} of {arm['examples']:,}, {len(arm['folds'])} folds", _format_interval(arm[metric]), "", "", ""


def _pair_row(pair: dict[str, Any]) -> Row:
    (arm, other), (our_interval, their_interval), metric = pair["arms"], pair["intervals"], pair["metric"]
    interval = pair["differences"][metric]
    label = f"{pair['dataset']} {arm}, {metric} of {pair['examples']:,}, {len(pair['folds'])} folds"
    difference = f"{interval['value']:+.4f} ({interval['low']:+.4f} to {interval['high']:+.4f}, p = {interval['p_value']:.3f})"
    return (
        label,
        _format_interval(our_interval),
        f"{other} {_format_interval(their_interval)}",
        difference,
        "above 0" if arm == "longformer" else "",
    )


def _format_interval(interval: dict[str, float]) -> str:
    return f"{interval['value']:.4f} ({interval['low']:.4f} to {interval['high']:.4f})"
