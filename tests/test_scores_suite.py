"""The suite that benchmarks/scores.toml is: files laid where it says are read, and judged by the score it names."""

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

SUITE = Path(__file__).parents[1] / "benchmarks/scores.toml"
NAMES = ("sst2", "mrpc", "stsb", "conll", "squad", "cmrc", "msra", "chnsenti")
TRUTHS = {
    "classify": lambda one: ClassificationPrediction(one.label, {}),
    "regress": lambda one: RegressionPrediction(one.label),
    "tag": lambda one: TokenClassificationPrediction(one.tags),
    "answer": lambda one: QuestionAnsweringPrediction(one.answers[0], *one.span, 0.0, 0.0, ()),
}


def _table(columns: dict[str, str]) -> str:
    names = {"text": "text", "label": "label"} | columns
    cells = {"text": "a film", "text_b": "a play"}
    rows = [[cells.get(key, str(number)) for key in names] for number in range(2)]
    return "\n".join("\t".join(row) for row in [list(names.values()), *rows])


def _file(case: Case) -> str:
    kind = to_dict(case.task)["kind"]
    if kind == "tag":
        return "EU B-ORG\nrejects O\n\nPeter B-PER\n"
    if kind == "answer":
        asked = {"id": "1", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 3}]}
        return json.dumps({"data": [{"title": "", "paragraphs": [{"context": "In Rome.", "qas": [asked]}]}]})
    return _table(case.columns)


def _laid(folder: Path) -> dict[str, Case]:
    shutil.copy(SUITE, folder)
    cases = _read_cases(folder / SUITE.name, None)
    for case in cases.values():
        for path in map(Path, (case.train, case.dev)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_file(case), encoding="utf-8")
    return cases


def test_it_has_the_tasks_of_the_results(tmp_path):
    cases = _laid(tmp_path)
    assert tuple(cases) == NAMES
    files = [path for case in cases.values() for path in (case.train, case.dev)]
    assert len(set(files)) == 2 * len(NAMES)
    assert all(Path(path).is_relative_to(tmp_path / "data") for path in files)
    assert {case.model for case in cases.values()} == {str(tmp_path / "en"), str(tmp_path / "zh")}


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_has_the_best_of_the_score_it_names(tmp_path, name):
    case = _laid(tmp_path)[name]
    columns = {"columns": case.columns} if case.columns else {}
    task: Any = from_dict(Task, to_dict(case.task) | columns)  # type: ignore[arg-type]
    examples = list(task.read(Path(case.dev)))
    answers = [TRUTHS[to_dict(task)["kind"]](one) for one in examples]
    assert task.fitted(examples).judge(answers, examples)[case.metric] == pytest.approx(1.0)


def test_a_key_it_does_not_know_is_refused(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE.read_text(encoding="utf-8").replace("overlap = 128", "overlapp = 128", 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"suite\.toml, squad: .*overlapp"):
        _read_cases(suite, None)
