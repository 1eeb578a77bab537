"""The suite benchmarks/scores.toml: its files are read, and gold predictions get the best score of its metric."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scores import _read_cases
from benchmarks.scoring import Case, Task
from bertsmith.config import from_dict, to_dict
from bertsmith.errors import UserError
from bertsmith.tasks.classification import ClassificationPrediction
from bertsmith.tasks.question_answering import QuestionAnsweringPrediction
from bertsmith.tasks.regression import RegressionPrediction
from bertsmith.tasks.token_classification import TokenClassificationPrediction

SUITE = Path(__file__).parents[2] / "benchmarks/scores.toml"
NAMES = ("sst2", "mrpc", "stsb", "conll", "squad", "cmrc", "msra", "chnsenti")
GOLD_PREDICTIONS = {
    "classify": lambda example: ClassificationPrediction(example.label, {}),
    "regress": lambda example: RegressionPrediction(example.label),
    "tag": lambda example: TokenClassificationPrediction(example.tags),
    "answer": lambda example: QuestionAnsweringPrediction(example.answers[0], *example.span, 0.0, 0.0, ()),
}


def _table(columns: dict[str, str]) -> str:
    names = {"text": "text", "label": "label"} | columns
    cells = {"text": "a film", "text_b": "a play"}
    rows = [[cells.get(key, str(number)) for key in names] for number in range(2)]
    return "\n".join("\t".join(row) for row in [list(names.values()), *rows])


def _example_file(case: Case) -> str:
    kind = to_dict(case.task)["kind"]
    if kind == "tag":
        return "EU B-ORG\nrejects O\n\nPeter B-PER\n"
    if kind == "answer":
        qa = {"id": "1", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 3}]}
        return json.dumps({"data": [{"title": "", "paragraphs": [{"context": "In Rome.", "qas": [qa]}]}]})
    return _table(case.columns)


def _write_suite(folder: Path) -> dict[str, Case]:
    shutil.copy(SUITE, folder)
    cases = _read_cases(folder / SUITE.name, None)
    for case in cases.values():
        for path in map(Path, (case.train, case.dev)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_example_file(case), encoding="utf-8")
    return cases


def test_scores_suite_has_the_published_tasks(tmp_path):
    cases = _write_suite(tmp_path)
    assert tuple(cases) == NAMES
    files = [path for case in cases.values() for path in (case.train, case.dev)]
    assert len(set(files)) == 2 * len(NAMES)
    assert all(Path(path).is_relative_to(tmp_path / "data") for path in files)
    assert {case.model for case in cases.values()} == {str(tmp_path / "en"), str(tmp_path / "zh")}


@pytest.mark.parametrize("name", NAMES)
def test_scores_suite_gold_predictions_have_the_best_score(tmp_path, name):
    case = _write_suite(tmp_path)[name]
    columns = {"columns": case.columns} if case.columns else {}
    task: Any = from_dict(Task, to_dict(case.task) | columns)  # type: ignore[arg-type]
    examples = list(task.read(Path(case.dev)))
    predictions = [GOLD_PREDICTIONS[to_dict(task)["kind"]](example) for example in examples]
    assert task.fit(examples).compute_metrics(predictions, examples)[case.metric] == pytest.approx(1.0)


def test_scores_suite_rejects_unknown_keys(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE.read_text(encoding="utf-8").replace("overlap = 128", "overlapp = 128", 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"suite\.toml, squad: .*overlapp"):
        _read_cases(suite, None)
