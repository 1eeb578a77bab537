"""The long-document benchmarks: every arm on every fold, the pooled table, scheduling, folds and joined passages."""

import json

import pytest

from benchmarks import long_documents, long_folds, long_questions
from benchmarks.inputs import BenchmarkInputs
from benchmarks.long_arms import ARMS, plan_steps, result_path
from benchmarks.long_documents import StepScheduler
from bertsmith import api
from bertsmith.model import checkpoint
from tests.support.texts import make_english_text

SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "mixer": {"num_attention_heads": 2},
    "feedforward": {"intermediate_size": 16},
    "max_position_embeddings": 32,
}
TRAIN = {"steps": 1, "batch_tokens": 256, "warmup_steps": 0, "device": "cpu"}
COUNTS = {"reviews": 2, "covid": 2}


@pytest.fixture(scope="module")
def options(tmp_path_factory, corpus):
    """Options with synthetic files of each kind, and a model after one step."""
    folder = tmp_path_factory.mktemp("long")
    model = folder / "model"
    api.pretrain(corpus=str(corpus), model=SMALL, max_length=32, objective="mlm", train=TRAIN, out=str(model), quiet=True)
    texts = [make_english_text(6, seed).replace("\n", " ") for seed in range(8)]
    rows = [{"text": text, "label": "ab"[n % 2], "fold": n // 2} for n, text in enumerate(texts)]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("covid", "squad"):
        (folder / f"{name}.json").write_text(json.dumps({"data": [_article(text) for text in texts[:4]]}))
    (folder / "long.txt").write_text(make_english_text(40, seed=9))
    files = {"reviews": "reviews.jsonl", "covid": "covid.json", "squad": "squad.json", "texts": "long.txt", "model": "model"}
    return {key: str(folder / name) for key, name in files.items()} | {
        "out": str(folder / "out"), "max_length": "64", "short_length": "32", "attention_window": "16", "folds": "2,2",
        "steps": "1"}  # fmt: skip


def _article(text):
    word = text.split()[3]
    answers = [{"text": word, "answer_start": text.index(word)}]
    return {"paragraphs": [{"context": text, "qas": [{"id": text[:9], "question": "What was it?", "answers": answers}]}]}


def test_long_documents_runs_every_arm_and_fold_once(options, tmp_path, monkeypatch):
    bench = BenchmarkInputs(tmp_path, options)
    rows = long_documents.run(bench)
    out = long_documents._read_config(bench).out
    table = json.loads((out / "table.json").read_text())
    assert set(table["arms"]) == {f"{dataset} {arm}" for dataset, arms in ARMS.items() for arm in arms}
    assert {arm_scores["examples"] for arm_scores in table["arms"].values()} == {8, 4}
    assert len(table["pairs"]) == 12 and len(rows) == 13 and rows[1][2].startswith("truncate ")
    times = {path: path.stat().st_mtime_ns for path in [*out.glob("results/*"), *out.glob("predictions/*")]}
    assert long_documents.run(bench) == rows
    assert times == {path: path.stat().st_mtime_ns for path in times}
    monkeypatch.setattr(long_documents, "run_jobs", lambda *options: pytest.fail("there is no time"))
    assert long_documents.run(BenchmarkInputs(tmp_path, options | {"seconds": "0"})) == rows


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_long_documents_stops_at_deadline(options, tmp_path, capsys, jobs):
    options = options | {"out": str(tmp_path / "out"), "seconds": "2", "steps": "1000000", "jobs": jobs}
    assert long_documents.run(BenchmarkInputs(tmp_path, options)) == []
    assert "time limit reached" in capsys.readouterr().out
    assert json.loads((tmp_path / "out/table.json").read_text()) == {"mlm": {}, "arms": {}, "pairs": []}


def test_long_documents_scheduler_starts_by_priority_and_drops_dependents(options, tmp_path):
    scheduler = StepScheduler(
        long_documents._read_config(BenchmarkInputs(tmp_path, options | {"out": str(tmp_path / "out")})), 6
    )
    facts = [result_path(scheduler.config.out, name) for name in ("corpus", "longer", "covid-longformer-0")]
    facts[0].parent.mkdir()
    for path in facts:
        path.write_text("{}")
    started = scheduler.start_ready()
    assert [job.name for job in started] == ["corpus", "longer"]
    after_conversion = scheduler.on_job_end(started[1], None)
    assert [job.name for job in after_conversion] == ["squad-full"]
    after_corpus = scheduler.on_job_end(started[0], None)
    assert [job.name for job in after_corpus] == ["mlm"]
    assert after_corpus[0].args[0].depends_on == ("corpus", "longer")
    names = [job.name for job in scheduler.on_job_end(after_corpus[0], "no memory")]
    assert [path.exists() for path in facts] == [True, True, False]
    assert "before" in names and not any("longformer" in step.name for step in scheduler.waiting)


def test_long_documents_steps_follow_their_dependencies(options, tmp_path):
    steps = plan_steps(long_documents._read_config(BenchmarkInputs(tmp_path, options)))
    seen = set()
    for step in steps:
        assert seen.issuperset(step.depends_on)
        seen.add(step.name)
    windows = [index for index, step in enumerate(steps) if "-longformer-" in step.name and "truncate" not in step.name]
    assert windows == list(range(windows[0], windows[0] + sum(COUNTS.values())))


@pytest.mark.parametrize("has_folds", [True, False])
def test_long_documents_review_folds_test_each_row_once(tmp_path, has_folds):
    rows = [{"text": f"text {n}", "label": n % 2} | ({"fold": n % 10} if has_folds else {}) for n in range(20)]
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    long_folds.write_review_folds(tmp_path / "reviews.jsonl", 5, tmp_path)
    lines = {split: [long_folds.fold_path(tmp_path, "reviews", fold, split).read_text().splitlines() for fold in range(5)]
            for split in ("train", "test")}  # fmt: skip
    assert sorted(line for test in lines["test"] for line in test) == sorted(lines["train"][0] + lines["test"][0])
    assert [len(test) for test in lines["test"]] == [4] * 5


def test_long_questions_joined_passages_keep_answers(tmp_path):
    texts = [make_english_text(2, seed).replace("\n", " ")[:50] for seed in range(5)]
    passages = [_article(text)["paragraphs"][0] for text in texts]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": passages[:3]}, {"paragraphs": passages[3:]}]}))
    for every, counts in ((1, [[2, 1], [2]]), (2, [[1, 1], [1]]), (3, [[1], [1]])):
        articles = long_questions.join_passages(tmp_path / "squad.json", 120, every)
        assert [[len(text["qas"]) for text in article["paragraphs"]] for article in articles] == counts
        for text in (text for article in articles for text in article["paragraphs"]):
            for answer in (answer for question in text["qas"] for answer in question["answers"]):
                assert text["context"][answer["answer_start"] :].startswith(answer["text"])


def test_long_questions_compares_windows_with_truncation(options, tmp_path):
    settings = {
        "model": options["model"],
        "squad": options["squad"],
        "dev": options["covid"],
        "out": str(tmp_path / "out"),
        "every": "1",
    }
    settings |= {"max_length": "64", "short_length": "32", "train_length": "32", "attention_window": "16"}
    settings |= {"steps": "1", "device": "cpu"}
    rows = long_questions.run(BenchmarkInputs(tmp_path, settings))
    assert [row[0][:2] for row in rows] == ["f1", "ex"] and all("of 4 questions" in row[0] for row in rows)
    assert checkpoint.read_config(tmp_path / "out/longformer")["max_length"] == 64
    assert checkpoint.read_config(tmp_path / "out/truncate")["max_length"] == 32
    assert long_questions.run(BenchmarkInputs(tmp_path, settings)) == rows
