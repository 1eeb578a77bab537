"""Answers of all folds together: every arm's scores with their intervals, and every two arms on the same examples."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from bertsmith.artifacts import read_json
from bertsmith.evaluation.evaluate import Evaluation, is_labeled
from bertsmith.evaluation.measures import get_primary_metric
from bertsmith.evaluation.significance import Difference, compare_evaluations
from bertsmith.tasks import QuestionAnswering, TextClassification
from bertsmith.tasks.classification import ClassificationPrediction
from bertsmith.tasks.question_answering import QuestionAnsweringPrediction

from .long_arms import ARMS, BEFORE_STEP, MLM_STEP, answers_path, facts_path
from .long_folds import fold_path

Row = tuple[str, str, str, str, str]
DATASETS: dict[str, tuple[Any, Any]] = {
    "reviews": (TextClassification(), ClassificationPrediction),
    "covid": (QuestionAnswering(), QuestionAnsweringPrediction),
}


def pool_folds(out: Path, num_folds: Mapping[str, int]) -> dict[str, Any]:
    """From files in `out` alone: each of the `arms`, `pairs` of them on folds that both have, and `reading` of text."""
    table: dict[str, Any] = {"reading": _mlm_losses(out), "arms": {}, "pairs": []}
    for what, arms in ARMS.items():
        there = {arm: folds for arm in arms if (folds := _finished_folds(out, what, arm, num_folds[what]))}
        for arm, folds in there.items():
            found = evaluate_arm(out, what, arm, folds)
            scores = {name: asdict(one) for name, one in found.intervals.items()}
            table["arms"][f"{what} {arm}"] = {"folds": sorted(folds), "examples": len(found.examples), **scores}
        for arm, other in combinations(there, 2):
            if both := there[arm] & there[other]:
                table["pairs"].append(_compare_arms(out, what, (arm, other), both))
    return table


def evaluate_arm(out: Path, dataset: str, arm: str, folds: set[int]) -> Evaluation:
    """An arm's answers to the test files of these folds, as if they were one file."""
    task, answer = DATASETS[dataset]
    examples, answers = [], []
    for fold in sorted(folds):
        lines = answers_path(out, f"{dataset}-{arm}-{fold}").read_text(encoding="utf-8").splitlines()
        for line, example in zip(lines, task.read(fold_path(out, dataset, fold, "test")), strict=True):
            if is_labeled(task, example):
                examples.append(example)
                answers.append(msgspec.json.decode(line, type=answer))
    if isinstance(task, TextClassification):
        task = TextClassification(labels=tuple(answers[0].scores))
    return Evaluation(task, examples, answers, task.compute_metrics(answers, examples))


def format_rows(table: dict[str, Any]) -> list[Row]:
    """The main score of each pair of arms; of an arm that has no other beside it, its own."""
    paired = {f"{one['what']} {arm}" for one in table["pairs"] for arm in one["arms"]}
    alone = [_arm_row(name, one) for name, one in table["arms"].items() if name not in paired]
    return [*_mlm_rows(table["reading"]), *alone, *(_pair_row(one) for one in table["pairs"])]


def _finished_folds(out: Path, dataset: str, arm: str, num_folds: int) -> set[int]:
    """Folds that are done."""
    return {fold for fold in range(num_folds) if facts_path(out, f"{dataset}-{arm}-{fold}").exists()}


def _compare_arms(out: Path, dataset: str, arms: tuple[str, str], folds: set[int]) -> dict[str, Any]:
    sides = [evaluate_arm(out, dataset, arm, folds) for arm in arms]
    name = get_primary_metric(sides[0].task)
    found: list[Difference] = compare_evaluations(*sides).differences
    return {"what": dataset, "arms": arms, "folds": sorted(folds), "examples": len(sides[0].examples), "metric": name,
            "sides": [asdict(side.intervals[name]) for side in sides],
            "differences": {one.name: asdict(one.above) | {"p": one.p, "exact p": one.exact_p} for one in found}}  # fmt: skip


def _mlm_losses(out: Path) -> dict[str, Any]:
    """Held-out text, words hidden, before and after further reading; nothing until both are done."""
    paths = [facts_path(out, name) for name in (BEFORE_STEP, MLM_STEP)]
    found = [read_json(path) for path in paths] if all(path.exists() for path in paths) else []
    return {name: one for name, one in zip((BEFORE_STEP, MLM_STEP), found, strict=False) if "valid_loss" in one}


def _mlm_rows(losses: dict[str, Any]) -> list[Row]:
    if len(losses) < 2:
        return []
    before, after = (losses[name]["valid_loss"] for name in (BEFORE_STEP, MLM_STEP))
    what = f"loss of hidden words after {losses[MLM_STEP]['tokens']:,} tokens, {losses[MLM_STEP]['tokens_per_second']:,.0f} a second"
    return [(what, f"{after:.4f}", f"before {before:.4f}", f"{after - before:+.4f}", "below 0")]


def _arm_row(name: str, arm: dict[str, Any]) -> Row:
    metric = "accuracy" if "accuracy" in arm else "f1"
    return f"{name}, {metric} of {arm['examples']:,}, {len(arm['folds'])} folds", _format_interval(arm[metric]), "", "", ""


def _pair_row(pair: dict[str, Any]) -> Row:
    (arm, other), (mine, theirs), metric = pair["arms"], pair["sides"], pair["metric"]
    above = pair["differences"][metric]
    what = f"{pair['what']} {arm}, {metric} of {pair['examples']:,}, {len(pair['folds'])} folds"
    apart = f"{above['value']:+.4f} ({above['low']:+.4f} to {above['high']:+.4f}, p = {above['p']:.3f})"
    return what, _format_interval(mine), f"{other} {_format_interval(theirs)}", apart, "above 0" if arm == "window" else ""


def _format_interval(interval: dict[str, float]) -> str:
    return f"{interval['value']:.4f} ({interval['low']:.4f} to {interval['high']:.4f})"
