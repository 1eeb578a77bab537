"""A shipped model by its name, wherever a model is asked for; a folder here comes first; a wrong name lists the right ones."""

import fnmatch
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import bertsmith
from bertsmith import cli
from bertsmith.artifacts import read_json, resolve_path
from bertsmith.errors import UserError
from bertsmith.pretrained import shipped
from tests.conftest import prose

ROOT = Path(__file__).parents[2]
TRAIN = {"steps": 2, "batch_tokens": 256}
NONE = "no model of that name comes with bertsmith; those that do: tiny-en"


def examples(path: Path) -> str:
    rows = [f"{'the people said' if i % 2 else 'one of these'}\t{'yes' if i % 2 else 'no'}" for i in range(16)]
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return str(path)


def test_models_are_listed_with_what_they_are(ships):
    assert bertsmith.models() == {"tiny-en": "a tiny English BERT"}


def test_a_package_without_models_lists_none_and_says_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for root in (tmp_path, tmp_path / "absent"):
        monkeypatch.setattr(shipped, "ROOT", root)
        assert bertsmith.models() == {}
        with pytest.raises(UserError, match="no model of that name comes with bertsmith; none does"):
            bertsmith.load("mini-en")


def test_listing_loads_no_torch():
    code = "import bertsmith, sys; bertsmith.models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_loaded_by_name_it_fills_and_embeds(ships):
    model = bertsmith.load("tiny-en")
    assert len(model.fill("the [MASK] was", top=3)[0]) == 3 and model.embed(["one", "two"]).shape == (2, 32)


@pytest.mark.parametrize("key", ["model", "init", "folder", "tokenizer", "extend"])
def test_a_folder_here_wins_over_the_shipped_one(ships, tmp_path, key):
    assert resolve_path("tiny-en", key) == ships / "tiny-en"
    assert resolve_path("./tiny-en/", "out") == Path("tiny-en")
    Path("tiny-en").mkdir()
    assert resolve_path("tiny-en", key) == Path("tiny-en")


@pytest.mark.parametrize("key", ["out", "corpus", "data", "documents", "source"])
def test_what_is_no_model_is_never_a_shipped_one(ships, key):
    assert resolve_path("tiny-en", key) == Path("tiny-en")


def test_a_model_of_ones_own_by_that_name_is_the_one_that_is_loaded(ships, source):
    shutil.copytree(source, "tiny-en")
    assert bertsmith.load("tiny-en").card["identity"] == "abc"


@pytest.mark.parametrize("name", ["..", ".", "card.py", "__pycache__", "../models", "tiny-en/"])
def test_only_the_names_of_models_are_names(ships, name):
    assert shipped.find_folder(name) is None


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "model=tiny-fr", "text=a [MASK]"],
        ["embed", "model=tiny-fr", "text=a"],
        ["export", "model=tiny-fr", "out=x"],
        ["doctor", "tiny-fr"],
        ["finetune", "task=classify", "model=tiny-fr", "data.train=rows.tsv", "out=x"],
        ["show", "curves", "model=tiny-fr", "out=x.html"],
        ["plan", "init=tiny-fr", "train.steps=1"],
    ],
)
def test_a_wrong_name_lists_the_right_ones(ships, capsys, words):
    examples(Path("rows.tsv"))
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"error: there is no folder tiny-fr, and {NONE}\n"
    assert [path.name for path in Path().iterdir()] == ["rows.tsv"]


def test_a_path_that_is_not_there_is_not_taken_for_a_name(ships):
    with pytest.raises(UserError, match="out/tiny-en holds no model"):
        bertsmith.load("out/tiny-en")


def test_a_task_is_taught_to_it_judged_and_compared(ships):
    rows = examples(Path("rows.tsv"))
    made = bertsmith.finetune(task="classify", model="tiny-en", data={"train": rows, "dev": rows}, out="taught", length=16,
                              train=TRAIN, quiet=True)  # fmt: skip
    assert made["made"] and bertsmith.evaluate(model="taught", data=rows, quiet=True)["scores"]
    again = bertsmith.finetune(task="classify", model=str(ships / "tiny-en"), data={"train": rows, "dev": rows}, out="taught",
                               length=16, train=TRAIN, quiet=True)  # fmt: skip
    assert again["made"] is False  # by what the folder holds, not by how it was named
    with pytest.raises(UserError, match="was not fine-tuned for a task"):
        bertsmith.evaluate(model="tiny-en", data=rows, quiet=True)
    tasks, every = {"yes-no": {"task": "classify", "data": {"train": rows, "dev": rows}}}, {"train": TRAIN, "length": 16}
    table = bertsmith.suite(models={"tiny": "tiny-en"}, tasks=tasks, every=every, seeds=[0], out="suite", quiet=True)
    assert table["out"] == "suite"


def test_its_pretraining_goes_on_with_its_tokenizer(ships):
    Path("text.txt").write_text(prose(20) + "the ribosome and the ribosome\n" * 3)
    bertsmith.prepare(texts="text.txt", tokenizer="tiny-en", out="corpus", workers=1, quiet=True)
    settings = {"corpus": "corpus", "init": "tiny-en", "objective": "masked", "length": [16], "eval_tokens": 512}
    made = bertsmith.pretrain(**settings, train=TRAIN, out="further", quiet=True)
    assert made["step"] == 2 and "weights" not in read_json(Path("further/config.json"))
    planned = bertsmith.plan(**settings, train=TRAIN, machine="h200", quiet=True)
    assert planned["parameters"]
    bertsmith.train_tokenizer(extend="tiny-en", add=2, texts="text.txt", out="extended", quiet=True)
    assert Path("extended/tokenizer.json").exists()


def test_the_other_stages_take_the_name_too(ships, capsys):
    assert cli.main(["predict", "model=tiny-en", "text=the [MASK] was", "out=answers.jsonl", "--quiet"]) == 0
    assert '"masks"' in Path("answers.jsonl").read_text()
    assert bertsmith.embed(model="tiny-en", text="one", out="one.npy", quiet=True)["width"] == 32
    assert np.load("one.npy").shape == (1, 32)
    assert bertsmith.doctor(folder="tiny-en", quiet=True)["kind"] == "checkpoint"
    assert bertsmith.export(model="tiny-en", out="small", format="packed", quiet=True)["out"] == "small"
    assert bertsmith.export(model="tiny-en", out="hf", quiet=True)["family"]


def test_nothing_is_written_where_models_are_shipped(ships):
    before = {path: path.stat().st_mtime_ns for path in ships.rglob("*")}
    bertsmith.load("tiny-en")
    bertsmith.embed(model="tiny-en", text="one", out="one.npy", quiet=True)
    bertsmith.export(model="tiny-en", out="small", format="packed", quiet=True)
    assert {path: path.stat().st_mtime_ns for path in ships.rglob("*")} == before


def test_the_wheel_takes_every_file_of_a_shipped_model(package):
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["bertsmith"]
    files = [f"pretrained/tiny-en/{path.name}" for path in (package / "tiny-en").iterdir()]
    assert len(files) == 6 and all(any(fnmatch.fnmatch(file, pattern) for pattern in patterns) for file in files)
