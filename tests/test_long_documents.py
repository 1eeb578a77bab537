"""The benchmark of long documents: every arm on every fold, a table of their answers, and nothing done twice."""

import json

import pytest

from benchmarks import long_documents, long_folds, long_questions
from benchmarks.long_arms import ARMS, facts_path, plan_steps
from benchmarks.long_documents import StepScheduler
from benchmarks.material import BenchmarkInputs
from bertsmith import api
from bertsmith.model import checkpoint
from tests.conftest import prose

SMALL = {"layers": 1, "width": 16, "mixer": {"heads": 2}, "feedforward": {"inner": 16}, "positions": 32}
TRAIN = {"steps": 1, "batch_tokens": 256, "warmup": 0, "device": "cpu"}
COUNTS = {"reviews": 2, "covid": 2}


@pytest.fixture(scope="module")
def given(tmp_path_factory, corpus):
    """Made-up files of each kind, and a model that has hardly learnt."""
    folder = tmp_path_factory.mktemp("long")
    model = folder / "model"
    api.pretrain(corpus=str(corpus), model=SMALL, length=32, objective="masked", train=TRAIN, out=str(model), quiet=True)
    texts = [prose(6, seed).replace("\n", " ") for seed in range(8)]
    rows = [{"text": text, "label": "ab"[n % 2], "fold": n // 2} for n, text in enumerate(texts)]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("covid", "squad"):
        (folder / f"{name}.json").write_text(json.dumps({"data": [_article(text) for text in texts[:4]]}))
    (folder / "long.txt").write_text(prose(40, seed=9))
    files = {"reviews": "reviews.jsonl", "covid": "covid.json", "squad": "squad.json", "texts": "long.txt", "model": "model"}
    return {key: str(folder / name) for key, name in files.items()} | {
        "out": str(folder / "out"), "length": "64", "short": "32", "reach": "8", "folds": "2,2", "steps": "1"}  # fmt: skip


def _article(text):
    word = text.split()[3]
    answers = [{"text": word, "answer_start": text.index(word)}]
    return {"paragraphs": [{"context": text, "qas": [{"id": text[:9], "question": "What was it?", "answers": answers}]}]}


def test_every_arm_answers_every_fold_and_nothing_is_done_twice(given, tmp_path, monkeypatch):
    stuff = BenchmarkInputs(tmp_path, given)
    rows = long_documents.run(stuff)
    out = long_documents._read_config(stuff).out
    table = json.loads((out / "table.json").read_text())
    assert set(table["arms"]) == {f"{what} {arm}" for what, arms in ARMS.items() for arm in arms}
    assert {one["examples"] for one in table["arms"].values()} == {8, 4}
    assert len(table["pairs"]) == 12 and len(rows) == 13 and rows[1][2].startswith("cut ")
    told = {path: path.stat().st_mtime_ns for path in [*out.glob("told/*"), *out.glob("answers/*")]}
    assert long_documents.run(stuff) == rows
    assert told == {path: path.stat().st_mtime_ns for path in told}
    monkeypatch.setattr(long_documents, "run_jobs", lambda *given: pytest.fail("there is no time"))
    assert long_documents.run(BenchmarkInputs(tmp_path, given | {"seconds": "0"})) == rows


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_when_the_time_is_up_the_table_is_of_what_is_there(given, tmp_path, capsys, jobs):
    given = given | {"out": str(tmp_path / "out"), "seconds": "2", "steps": "1000000", "jobs": jobs}
    assert long_documents.run(BenchmarkInputs(tmp_path, given)) == []
    assert "the time is up" in capsys.readouterr().out
    assert json.loads((tmp_path / "out/table.json").read_text()) == {"reading": {}, "arms": {}, "pairs": []}


def test_windows_are_begun_first_and_what_waits_for_a_step_that_failed_is_left_out(given, tmp_path):
    course = StepScheduler(long_documents._read_config(BenchmarkInputs(tmp_path, given | {"out": str(tmp_path / "out")})), 6)
    told = [facts_path(course.config.out, name) for name in ("corpus", "longer", "covid-window-0")]
    told[0].parent.mkdir()
    for path in told:
        path.write_text("{}")
    begun = course.start_ready()
    assert [job.name for job in begun] == ["corpus", "longer"]
    longer = course.on_job_end(begun[1], None)
    assert [job.name for job in longer] == ["squad-dense"]
    more = course.on_job_end(begun[0], None)
    assert [job.name for job in more] == ["mlm"]
    assert more[0].args[0].depends_on == ("corpus", "longer")
    names = [job.name for job in course.on_job_end(more[0], "no memory")]
    assert [path.exists() for path in told] == [True, True, False]
    assert "before" in names and not any("window" in step.name or "near" in step.name for step in course.waiting)


def test_needs_stand_before_what_waits_for_them(given, tmp_path):
    found = plan_steps(long_documents._read_config(BenchmarkInputs(tmp_path, given)))
    met = set()
    for step in found:
        assert met.issuperset(step.depends_on)
        met.add(step.name)
    windows = [number for number, step in enumerate(found) if "-window-" in step.name]
    assert windows == list(range(windows[0], windows[0] + sum(COUNTS.values())))


@pytest.mark.parametrize("own", [True, False])
def test_every_review_is_judged_once(tmp_path, own):
    rows = [{"text": f"text {n}", "label": n % 2} | ({"fold": n % 10} if own else {}) for n in range(20)]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    long_folds.write_review_folds(tmp_path / "reviews.jsonl", 5, tmp_path)
    read = {name: [long_folds.fold_path(tmp_path, "reviews", fold, name).read_text().splitlines() for fold in range(5)]
            for name in ("train", "test")}  # fmt: skip
    assert sorted(line for test in read["test"] for line in test) == sorted(read["train"][0] + read["test"][0])
    assert [len(test) for test in read["test"]] == [4] * 5


def test_joined_passages_keep_their_answers(tmp_path):
    texts = [prose(2, seed).replace("\n", " ")[:50] for seed in range(5)]
    passages = [_article(text)["paragraphs"][0] for text in texts]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": passages[:3]}, {"paragraphs": passages[3:]}]}))
    for every, counts in ((1, [[2, 1], [2]]), (2, [[1, 1], [1]]), (3, [[1], [1]])):
        articles = long_questions.join_passages(tmp_path / "squad.json", 120, every)
        assert [[len(text["qas"]) for text in one["paragraphs"]] for one in articles] == counts
        for text in (text for one in articles for text in one["paragraphs"]):
            for answer in (answer for asked in text["qas"] for answer in asked["answers"]):
                assert text["context"][answer["answer_start"] :].startswith(answer["text"])


def test_a_reader_is_made_long_and_judged_against_itself_cut_off(given, tmp_path):
    told = {"model": given["model"], "squad": given["squad"], "dev": given["covid"], "out": str(tmp_path / "out"), "every": "1"}
    told |= {"length": "64", "short": "32", "taught": "32", "reach": "8", "steps": "1", "device": "cpu"}
    rows = long_questions.run(BenchmarkInputs(tmp_path, told))
    assert [row[0][:2] for row in rows] == ["f1", "ex"] and all("of 4 questions" in row[0] for row in rows)
    assert checkpoint.read_config(tmp_path / "out/long")["length"] == 64
    assert checkpoint.read_config(tmp_path / "out/cut")["length"] == 32
    assert long_questions.run(BenchmarkInputs(tmp_path, told)) == rows
