"""Shipped models by name, wherever a stage takes a model; an existing folder takes precedence."""

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
from tests.support.texts import make_english_text

ROOT = Path(__file__).parents[2]
TRAIN = {"steps": 2, "batch_tokens": 256}
NOT_SHIPPED = "no shipped model of that name (shipped: tiny-en); give the path of a model folder"


def write_examples(path: Path) -> str:
    rows = [f"{'the people said' if i % 2 else 'one of these'}\t{'yes' if i % 2 else 'no'}" for i in range(16)]
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return str(path)


def test_shipped_models_are_listed_with_summaries(ships):
    assert bertsmith.models() == {"tiny-en": "a tiny English BERT"}


def test_package_without_shipped_models(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for root in (tmp_path, tmp_path / "absent"):
        monkeypatch.setattr(shipped, "ROOT", root)
        assert bertsmith.models() == {}
        with pytest.raises(UserError, match=r"no shipped model of that name \(shipped: none\)"):
            bertsmith.load("mini-en")


def test_listing_shipped_models_does_not_import_torch():
    code = "import bertsmith, sys; bertsmith.models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_shipped_model_is_loaded_by_name(ships):
    model = bertsmith.load("tiny-en")
    assert len(model.fill("the [MASK] was", top_k=3)) == 3 and model.embed(["one", "two"]).shape == (2, 32)


@pytest.mark.parametrize("key", ["model", "init", "folder", "tokenizer", "extend"])
def test_existing_folder_takes_precedence_over_shipped_model(ships, tmp_path, key):
    assert resolve_path("tiny-en", key) == ships / "tiny-en"
    assert resolve_path("./tiny-en/", "out") == Path("tiny-en")
    Path("tiny-en").mkdir()
    assert resolve_path("tiny-en", key) == Path("tiny-en")


@pytest.mark.parametrize("key", ["out", "corpus", "data", "documents", "source"])
def test_keys_that_take_no_model_do_not_resolve_shipped_names(ships, key):
    assert resolve_path("tiny-en", key) == Path("tiny-en")


def test_load_prefers_a_folder_of_that_name(ships, source):
    shutil.copytree(source, "tiny-en")
    assert bertsmith.load("tiny-en").card["identity"] == "abc"


@pytest.mark.parametrize("name", ["..", ".", "card.py", "__pycache__", "../models", "tiny-en/"])
def test_shipped_find_folder_rejects_other_names(ships, name):
    assert shipped.find_folder(name) is None


@pytest.mark.parametrize(
    "argv",
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
def test_unknown_model_name_lists_shipped_models(ships, capsys, argv):
    write_examples(Path("rows.tsv"))
    assert cli.main(argv) == 2
    assert capsys.readouterr().err == f"error: there is no folder tiny-fr, and {NOT_SHIPPED}\n"
    assert [path.name for path in Path().iterdir()] == ["rows.tsv"]


def test_missing_path_is_not_taken_for_a_shipped_name(ships):
    with pytest.raises(UserError, match="there is no folder out/tiny-en"):
        bertsmith.load("out/tiny-en")


def test_shipped_model_in_finetune_evaluate_and_suite(ships):
    rows = write_examples(Path("rows.tsv"))
    result = bertsmith.finetune(task="classify", model="tiny-en", data={"train": rows, "dev": rows}, out="tuned", max_length=16,
                              train=TRAIN, quiet=True)  # fmt: skip
    assert result["created"] and bertsmith.evaluate(model="tuned", data=rows, quiet=True)["scores"]
    repeated = bertsmith.finetune(task="classify", model=str(ships / "tiny-en"), data={"train": rows, "dev": rows}, out="tuned",
                               max_length=16, train=TRAIN, quiet=True)  # fmt: skip
    assert repeated["created"] is False  # identified by content, not by path
    with pytest.raises(UserError, match="was not fine-tuned for a task"):
        bertsmith.evaluate(model="tiny-en", data=rows, quiet=True)
    tasks, every = {"yes-no": {"task": "classify", "data": {"train": rows, "dev": rows}}}, {"train": TRAIN, "max_length": 16}
    table = bertsmith.suite(models={"tiny": "tiny-en"}, tasks=tasks, every=every, seeds=[0], out="suite", quiet=True)
    assert table["out"] == "suite"


def test_shipped_model_in_prepare_pretrain_plan_and_tokenizer(ships):
    Path("text.txt").write_text(make_english_text(20) + "the ribosome and the ribosome\n" * 3)
    bertsmith.prepare(texts="text.txt", tokenizer="tiny-en", out="corpus", workers=1, quiet=True)
    settings = {"corpus": "corpus", "init": "tiny-en", "objective": "mlm", "max_length": [16], "eval_tokens": 512}
    result = bertsmith.pretrain(**settings, train=TRAIN, out="further", quiet=True)
    assert result["step"] == 2 and "weights" not in read_json(Path("further/config.json"))
    plan = bertsmith.plan(**settings, train=TRAIN, machine="h200", quiet=True)
    assert plan["parameters"]
    bertsmith.train_tokenizer(extend="tiny-en", add=2, texts="text.txt", out="extended", quiet=True)
    assert Path("extended/tokenizer.json").exists()


def test_shipped_model_in_predict_embed_doctor_and_export(ships, capsys):
    assert cli.main(["predict", "model=tiny-en", "text=the [MASK] was", "out=answers.jsonl", "--quiet"]) == 0
    assert '"token_str"' in Path("answers.jsonl").read_text()
    assert bertsmith.embed(model="tiny-en", text="one", out="one.npy", quiet=True)["hidden_size"] == 32
    assert np.load("one.npy").shape == (1, 32)
    assert bertsmith.doctor(folder="tiny-en", quiet=True)["kind"] == "checkpoint"
    assert bertsmith.export(model="tiny-en", out="small", format="int8", quiet=True)["out"] == "small"
    assert bertsmith.export(model="tiny-en", out="hf", quiet=True)["family"]


def test_shipped_folder_is_never_written(ships):
    mtimes = {path: path.stat().st_mtime_ns for path in ships.rglob("*")}
    bertsmith.load("tiny-en")
    bertsmith.embed(model="tiny-en", text="one", out="one.npy", quiet=True)
    bertsmith.export(model="tiny-en", out="small", format="int8", quiet=True)
    assert {path: path.stat().st_mtime_ns for path in ships.rglob("*")} == mtimes


def test_wheel_includes_every_file_of_a_shipped_model(package):
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["bertsmith"]
    files = [f"pretrained/tiny-en/{path.name}" for path in (package / "tiny-en").iterdir()]
    assert len(files) == 6 and all(any(fnmatch.fnmatch(file, pattern) for pattern in patterns) for file in files)
