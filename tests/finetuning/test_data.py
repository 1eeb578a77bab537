"""The files of a fine-tuning run: test files, encodings, columns by number, parquet, labels of dev and test."""

import json

import numpy as np
import pytest

from bertsmith.artifacts import read_json
from tests.support.cli import FAST, run_cli, run_cli_error, run_cli_json
from tests.support.models import save_model
from tests.support.rows import classification_row, write_jsonl


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "bert")


def make_rows(count, seed):
    rng = np.random.default_rng(seed)
    return [classification_row(rng) for _ in range(count)]


def write_table(path, rows, encoding="utf-8", header=True):
    lines = ["text\tlabel"] * header + [f"{row['text']}\t{row['label']}" for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


@pytest.fixture
def finetune(bert, tmp_path):
    """The command line of a short run on train, with further arguments."""

    def argv(*args, task="classify", steps=3):
        return ["finetune", f"task={task}", f"model={bert}", f"out={tmp_path / 'out'}", f"train.steps={steps}", *FAST, *args]

    return argv


def test_test_file_is_scored_with_the_final_model_and_stored_in_the_card(finetune, tmp_path):
    rows = {name: make_rows(60, seed) for seed, name in enumerate(("train", "dev", "test"))}
    rows["test"][::3] = [{**row, "label": "bad"} for row in rows["test"][::3]]
    files = {name: write_jsonl(tmp_path / f"{name}.jsonl", rows[name]) for name in rows}
    result = run_cli_json(*finetune(*(f"data.{name}={path}" for name, path in files.items()), steps=30))
    card = read_json(tmp_path / "out" / "card.json")
    scored = run_cli_json("evaluate", f"model={tmp_path / 'out'}", f"data={files['test']}")["scores"]
    assert result["test"] == pytest.approx(scored) and result["dev"] != result["test"]
    assert card["test_metrics"]["accuracy"]["value"] == pytest.approx(scored["accuracy"])
    assert len(card["test_metrics"]["accuracy"]["confidence_interval"]) == 2


def test_invalid_test_file_is_refused_before_training(finetune, tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", make_rows(20, 0))
    test = write_jsonl(tmp_path / "test.jsonl", [{"text": "the"}])
    assert "test.jsonl" in run_cli_error(*finetune(f"data.train={train}", f"data.test={test}"))
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_tables_without_a_header_and_in_another_encoding(finetune, tmp_path):
    rows = [{**row, "text": row["text"] + " 天"} for row in make_rows(30, 0)]
    path = write_table(tmp_path / "train.tsv", rows, "gb18030", header=False)
    argv = finetune(f"data.train={path}", "data.columns.text=0", "data.columns.label=1")
    assert "it is not UTF-8" in run_cli_error(*argv)
    assert "data.encoding=klingon is not an encoding" in run_cli_error(*argv, "data.encoding=klingon")
    assert run_cli_json(*argv, "data.encoding=gb18030")["examples"] == 27  # and three held out


def test_regression_on_a_table_without_a_header(finetune, tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("".join(f"{number % 7}.5,the people,{number}\n" for number in range(20)))
    argv = finetune(f"data.train={path}", "data.columns.text=1", "data.columns.label=0", task="regress")
    assert run_cli_json(*argv)["examples"] == 18  # and two held out


@pytest.mark.parametrize("task", ["classify", "regress", "tag", "choose", "similar", "generate", "answer"])
def test_every_task_reads_parquet(tmp_path, task):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from bertsmith.config import from_dict
    from bertsmith.tasks import TaskConfig

    rows = {
        "classify": {"text": "a", "label": "x"},
        "regress": {"text": "a", "label": 1.5},
        "tag": {"tokens": ["a", "b"], "tags": ["O", "B-X"]},
        "choose": {"context": "a", "options": ["b", "c"], "label": 1},
        "similar": {"text": "a", "text_b": "b", "score": 2.0},
        "generate": {"source": "a", "target": "b"},
        "answer": {"question": "a", "context": "b c", "answers": {"text": ["c"], "answer_start": [2]}},
    }
    parquet.write_table(pyarrow.Table.from_pylist([rows[task]]), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text(json.dumps(rows[task]) + "\n")
    reader = from_dict(TaskConfig, {"kind": task}, "test")
    [example], [expected] = (
        [vars(example) | {"source": ""} for example in reader.read(tmp_path / name)] for name in ("a.parquet", "a.jsonl")
    )
    assert example == expected


def test_extreme_labels_are_refused_and_nothing_is_published(finetune, tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", [{"text": "the", "label": 1e39}, {"text": "a", "label": 1}])
    assert "line 1: label is 1e+39, too large" in run_cli_error(*finetune(f"data.train={train}", task="regress"))
    surrogate = tmp_path / "b.jsonl"
    surrogate.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n{"text": "c", "label": "\\ud83d"}\n')
    argv = finetune(f"data.train={surrogate}")
    assert "b.jsonl, line 3: label has the lone surrogate" in run_cli_error(*argv)
    assert "skipped 1 invalid row" in run_cli(*argv, "data.skip_bad=true").stderr


def test_labels_that_only_dev_or_test_have_count_as_wrong_and_are_reported(finetune, tmp_path):
    train, dev = make_rows(40, 0), make_rows(20, 1)
    dev[3]["label"] = dev[7]["label"] = "goood"
    files = [f"data.{name}={write_jsonl(tmp_path / f'{name}.jsonl', rows)}" for name, rows in (("train", train), ("dev", dev))]
    completed = run_cli(*finetune(*files, f"data.test={tmp_path / 'dev.jsonl'}", steps=60), "--json")
    result, unknown = json.loads(completed.stdout.splitlines()[-1]), {"goood": 2}
    assert "dev.jsonl, line 4: 'goood' (2 in the file) is not a label" in " ".join(completed.stderr.split())
    assert "did you mean 'good'?" in " ".join(completed.stderr.split())
    assert result["unknown_labels"] == {"dev": unknown, "test": unknown} and result["dev"]["accuracy"] <= 0.9
    argv = ["evaluate", f"model={tmp_path / 'out'}", f"data={tmp_path / 'dev.jsonl'}"]
    evaluation = run_cli_json(*argv, f"out={tmp_path / 'report'}")
    assert evaluation["unknown_labels"] == unknown and evaluation["scores"] == pytest.approx(result["dev"])


def test_labels_of_a_file_are_used_in_its_order(finetune, tmp_path):
    train, labels = write_jsonl(tmp_path / "train.jsonl", make_rows(20, 0)), tmp_path / "labels.txt"
    argv = finetune(f"data.train={train}", f"task.labels={labels}")
    labels.write_text("good\nbad\ngood\n")
    assert "labels.txt, line 3: 'good' is on line 1 already" in run_cli_error(*argv)
    labels.write_text("unsure\ngood\nbad\n")
    run_cli(*argv)
    assert read_json(tmp_path / "out" / "config.json")["task"]["labels"] == ["unsure", "good", "bad"]
    labels.write_text("bad\ngood\n")
    assert "contains a model of another recipe" in run_cli_error(*argv)
