"""Rows of a Python program in `finetune`, `evaluate` and `load(...)(...)`: the same as a file with them."""

import dataclasses
import json

import msgspec
import numpy as np
import pytest

import bertsmith
from bertsmith.errors import UserError
from bertsmith.finetuning import examples
from bertsmith.model import checkpoint
from tests.support.rows import classification_row, tagging_row, write_jsonl

SETTINGS = {"task": "classify", "max_length": 32, "train": {"steps": 3, "batch_tokens": 256}, "quiet": True}


class Columns:
    """A data frame as pandas and polars have it."""

    def __init__(self, rows):
        self.rows, self.columns = rows, list(rows[0])

    def __getitem__(self, name):
        return [row[name] for row in self.rows]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return [classification_row(rng) for _ in range(40)]


@pytest.fixture
def from_files(tiny_model, tmp_path, rows):
    train, dev = write_jsonl(tmp_path / "train.jsonl", rows[:30]), write_jsonl(tmp_path / "dev.jsonl", rows[30:])
    return bertsmith.finetune(model=tiny_model, data={"train": train, "dev": dev}, out=tmp_path / "files", **SETTINGS)


def weights_of(folder):
    return {name: tensor.numpy() for name, tensor in checkpoint.load(folder)[0].state_dict().items()}


@pytest.mark.parametrize(
    "give",
    [list, iter, Columns, lambda rows: {"text": [row["text"] for row in rows], "label": [row["label"] for row in rows]}],
    ids=["list", "generator", "data frame", "columns"],
)
def test_finetune_with_rows_equals_finetune_with_files(tiny_model, tmp_path, rows, from_files, give):
    out = tmp_path / "rows"
    data = bertsmith.Data(train=give(rows[:30]), dev=give(rows[30:]))
    run = bertsmith.finetune(model=tiny_model, data=data, out=out, **SETTINGS)
    assert run["dev"] == from_files["dev"]
    ours, theirs = weights_of(out), weights_of(tmp_path / "files")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert json.loads((out / "config.json").read_text())["recipe"]["data"]["train"] == "data.train"
    scores = bertsmith.evaluate(model=out, data=give(rows[30:]), out=tmp_path / "report", quiet=True).scores
    assert scores["accuracy"] == pytest.approx(run["dev"]["accuracy"])
    assert "bertsmith-" not in (tmp_path / "report" / "report.html").read_text()  # the folder of the file


def test_a_run_with_rows_is_its_content(tiny_model, tmp_path, rows):
    def run(rows):
        return bertsmith.finetune(model=tiny_model, data={"train": rows}, out=tmp_path / "out", **SETTINGS)

    assert run(rows)["created"] and not run(list(rows))["created"]
    with pytest.raises(UserError, match="contains a model of another recipe"):
        run([*rows[:-1], rows[-1] | {"text": "other"}])


def test_rows_of_several_seeds(tiny_model, tmp_path, rows):
    data = bertsmith.Data(train=iter(rows[:30]), dev=rows[30:], test=rows[20:])
    run = bertsmith.finetune(model=tiny_model, data=data, out=tmp_path / "out", seeds=[1, 2], **SETTINGS)
    assert set(run["test_seeds"]) == {"1", "2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": None}, "data.train, row 3: text is null"),
        ({"text": float("nan")}, "data.train, row 3: text is null"),
        ({"label": None}, "data.train, row 3 has no label"),
        ({"label": float("nan")}, "data.train, row 3 has no label"),
        ({"text": 7}, "data.train, row 3: text is 7, not a text"),
    ],
)
def test_a_missing_value_is_named_by_its_row(tiny_model, tmp_path, rows, change, message):
    bad = [*rows[:2], rows[2] | change, *rows[3:]]
    for give in (list, iter, Columns):
        with pytest.raises(UserError) as error:
            bertsmith.finetune(model=tiny_model, data=bertsmith.Data(train=give(bad)), out=tmp_path / "out", **SETTINGS)
        assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert not (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "data.train has no rows"),
        (["a text"], 'data.train, row 1 is "a text", not a dictionary such as'),
        ({"text": ["a", "b"], "label": ["c"]}, "data.train is a dictionary, but not of columns of one length"),
        ({"text": "a", "label": "c"}, "data.train is a dictionary, but not of columns"),
    ],
)
def test_rows_of_another_form_are_refused_in_one_line(tiny_model, tmp_path, train, message):
    with pytest.raises(UserError) as error:
        bertsmith.finetune(model=tiny_model, data=bertsmith.Data(train=train), out=tmp_path / "out", **SETTINGS)
    assert str(error.value).startswith(message)


def test_rows_in_the_place_of_a_file_are_answered_with_what_takes_them(tiny_model, tmp_path, rows):
    with pytest.raises(UserError, match=r"give data=bertsmith.Data\(train=ROWS"):
        bertsmith.finetune(model=tiny_model, data=rows, out=tmp_path / "out", **SETTINGS)
    with pytest.raises(UserError, match=r"data takes a file; for rows, call bertsmith.load"):
        bertsmith.predict(model=tiny_model, data=Columns(rows))


def test_token_lists_of_numpy_and_other_columns_are_rows(tiny_model, tmp_path):
    rng = np.random.default_rng(1)
    rows = [tagging_row(rng) for _ in range(20)]
    arrays = [{"tokens": np.array(row["tokens"]), "tags": np.array(row["tags"]), "weight": np.float32(1)} for row in rows]
    settings = SETTINGS | {"task": "tag"}
    first = bertsmith.finetune(model=tiny_model, data={"train": rows}, out=tmp_path / "a", **settings)
    second = bertsmith.finetune(model=tiny_model, data={"train": Columns(arrays)}, out=tmp_path / "b", **settings)
    assert first["dev"] == second["dev"] and first["loss"] == second["loss"]


def test_data_has_the_keys_of_the_recipe():
    keys = {field.name: field.default for field in msgspec.structs.fields(examples.Data)}
    assert {field.name for field in dataclasses.fields(bertsmith.Data)} == set(keys)


def test_pandas(tiny_model, tmp_path, rows):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows)
    frame["text_b"] = frame["text"].str[::-1]
    frame.index = range(100, 140)  # an index of its own, as after a filter
    out = tmp_path / "out"
    run = bertsmith.finetune(model=tiny_model, data=bertsmith.Data(train=frame[:30], dev=frame[30:]), out=out, **SETTINGS)
    scores = bertsmith.evaluate(model=out, data=frame[30:], quiet=True).scores
    assert scores["accuracy"] == pytest.approx(run["dev"]["accuracy"])
    pairs = run.model(frame[["text", "text_b"]])
    expected = run.model(list(frame["text"]), list(frame["text_b"]))
    assert [answer["score"] for answer in pairs] == [answer["score"] for answer in expected] and len(pairs) == 40
    assert run.model(frame["text"])[:3] == run.model(list(frame["text"]))[:3] == run.model(text for text in frame["text"])[:3]
    frame.loc[102, "text"] = None
    with pytest.raises(UserError, match=r"data.train, row 3: text is null"):
        bertsmith.finetune(model=tiny_model, data=bertsmith.Data(train=frame), out=tmp_path / "bad", **SETTINGS)
    for inputs in (frame, frame["text"], (text for text in frame["text"])):
        with pytest.raises(UserError, match=r"row 3 of the input of a model for task=classify: text is missing"):
            run.model(inputs)
    with pytest.raises(UserError, match=r"row 3 of the input: .* is not a text"):
        run.model.embed(frame["text"])
    frame["text"] = frame["text"].astype("string").mask(frame.index == 103)  # pandas.NA
    with pytest.raises(UserError, match=r"row 3 of the input .*: text is missing"):
        run.model(frame)
