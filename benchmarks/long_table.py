"""Answers of all folds together: every arm's scores with their intervals, and every two arms on the same examples."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from bertsmith.artifacts import read_json
from bertsmith.evaluation.evaluate import Judged, known
from bertsmith.evaluation.measures import headline
from bertsmith.evaluation.significance import Difference, compared
from bertsmith.tasks import Answering, Classify
from bertsmith.tasks.classification import Label
from bertsmith.tasks.question_answering import Answered

from .long_arms import ARMS, BEFORE, MLM, answers_of, told_of
from .long_folds import part

Row = tuple[str, str, str, str, str]
KINDS: dict[str, tuple[Any, Any]] = {"reviews": (Classify(), Label), "covid": (Answering(), Answered)}


def pooled(out: Path, counts: Mapping[str, int]) -> dict[str, Any]:
    """From files in `out` alone: each of the `arms`, `pairs` of them on folds that both have, and `reading` of text."""
    table: dict[str, Any] = {"reading": _reading(out), "arms": {}, "pairs": []}
    for what, arms in ARMS.items():
        there = {arm: folds for arm in arms if (folds := _there(out, what, arm, counts[what]))}
        for arm, folds in there.items():
            found = judged(out, what, arm, folds)
            scores = {name: asdict(one) for name, one in found.intervals.items()}
            table["arms"][f"{what} {arm}"] = {"folds": sorted(folds), "examples": len(found.examples), **scores}
        for arm, other in combinations(there, 2):
            if both := there[arm] & there[other]:
                table["pairs"].append(_pair(out, what, (arm, other), both))
    return table


def judged(out: Path, what: str, arm: str, folds: set[int]) -> Judged:
    """An arm's answers to the test files of these folds, as if they were one file."""
    task, answer = KINDS[what]
    examples, answers = [], []
    for fold in sorted(folds):
        lines = answers_of(out, f"{what}-{arm}-{fold}").read_text(encoding="utf-8").splitlines()
        for line, example in zip(lines, task.read(part(out, what, fold, "test")), strict=True):
            if known(task, example):
                examples.append(example)
                answers.append(msgspec.json.decode(line, type=answer))
    if isinstance(task, Classify):
        task = Classify(labels=tuple(answers[0].scores))
    return Judged(task, examples, answers, task.judge(answers, examples))


def rows(table: dict[str, Any]) -> list[Row]:
    """The main score of each pair of arms; of an arm that has no other beside it, its own."""
    paired = {f"{one['what']} {arm}" for one in table["pairs"] for arm in one["arms"]}
    alone = [_alone(name, one) for name, one in table["arms"].items() if name not in paired]
    return [*_read_on(table["reading"]), *alone, *(_told(one) for one in table["pairs"])]


def _there(out: Path, what: str, arm: str, count: int) -> set[int]:
    """Folds that are done."""
    return {fold for fold in range(count) if told_of(out, f"{what}-{arm}-{fold}").exists()}


def _pair(out: Path, what: str, arms: tuple[str, str], folds: set[int]) -> dict[str, Any]:
    sides = [judged(out, what, arm, folds) for arm in arms]
    name = headline(sides[0].task)
    found: list[Difference] = compared(*sides).differences
    return {"what": what, "arms": arms, "folds": sorted(folds), "examples": len(sides[0].examples), "metric": name,
            "sides": [asdict(side.intervals[name]) for side in sides],
            "differences": {one.name: asdict(one.above) | {"p": one.p, "exact p": one.exact_p} for one in found}}  # fmt: skip


def _reading(out: Path) -> dict[str, Any]:
    """Held-out text, words hidden, before and after further reading; nothing until both are done."""
    paths = [told_of(out, name) for name in (BEFORE, MLM)]
    found = [read_json(path) for path in paths] if all(path.exists() for path in paths) else []
    return {name: one for name, one in zip((BEFORE, MLM), found, strict=False) if "valid_loss" in one}


def _read_on(reading: dict[str, Any]) -> list[Row]:
    if len(reading) < 2:
        return []
    before, after = (reading[name]["valid_loss"] for name in (BEFORE, MLM))
    what = f"loss of hidden words after {reading[MLM]['tokens']:,} tokens, {reading[MLM]['tokens_per_second']:,.0f} a second"
    return [(what, f"{after:.4f}", f"before {before:.4f}", f"{after - before:+.4f}", "below 0")]


def _alone(name: str, one: dict[str, Any]) -> Row:
    metric = "accuracy" if "accuracy" in one else "f1"
    return f"{name}, {metric} of {one['examples']:,}, {len(one['folds'])} folds", _around(one[metric]), "", "", ""


def _told(pair: dict[str, Any]) -> Row:
    (arm, other), (mine, theirs), metric = pair["arms"], pair["sides"], pair["metric"]
    above = pair["differences"][metric]
    what = f"{pair['what']} {arm}, {metric} of {pair['examples']:,}, {len(pair['folds'])} folds"
    apart = f"{above['value']:+.4f} ({above['low']:+.4f} to {above['high']:+.4f}, p = {above['p']:.3f})"
    return what, _around(mine), f"{other} {_around(theirs)}", apart, "above 0" if arm == "window" else ""


def _around(one: dict[str, float]) -> str:
    return f"{one['value']:.4f} ({one['low']:.4f} to {one['high']:.4f})"
