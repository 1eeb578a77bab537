"""`bertsmith doctor FOLDER`: text output, JSON output, and exit codes."""

import json
import shutil

import pytest

import bertsmith
from bertsmith.cli import main
from tests.support.diagnostics import generate_text, prepare_corpus


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("doctor"), generate_text(500))


@pytest.fixture(scope="module")
def duplicated_corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("duplicated_corpus"), 3 * generate_text(60))


def test_doctor_healthy_folder_prints_one_line(capsys, corpus_folder):
    assert main(["doctor", str(corpus_folder)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == f"{corpus_folder} (corpus): healthy\n"


def test_doctor_prints_problems_and_exits_1(capsys, duplicated_corpus):
    assert main(["doctor", str(duplicated_corpus)]) == 1
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert (
        captured.out == "" and lines[0] == "problem: duplicate text" and lines[-1] == f"{duplicated_corpus} (corpus): 1 problem"
    )
    assert [line.split()[0] for line in lines[1:4]] == ["observation", "explanation", "suggestion"]


def test_doctor_json_has_all_fields_of_findings(capsys, duplicated_corpus):
    assert main(["doctor", f"folder={duplicated_corpus}", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["kind"], result["healthy"], result["problems"], result["notes"]) == ("corpus", False, 1, 0)
    assert result["findings"][0].keys() == {"name", "severity", "observation", "explanation", "suggestion", "setting"}
    assert result == bertsmith.doctor(folder=str(duplicated_corpus), quiet=True)


def test_doctor_quiet_still_names_problems(capsys, duplicated_corpus, corpus_folder):
    assert main(["doctor", str(duplicated_corpus), "--quiet"]) == 1 and main(["doctor", str(corpus_folder), "--quiet"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"warning: {duplicated_corpus}: duplicate text: ")


def test_doctor_missing_folder_exits_2(capsys, tmp_path):
    assert main(["doctor", str(tmp_path / "absent"), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: there is no folder") and captured.err.count("\n") == 1
    assert main(["doctor"]) == 2 and "folder is required" in capsys.readouterr().err


def test_doctor_takes_folder_from_recipe(capsys, tmp_path, corpus_folder):
    (tmp_path / "look.toml").write_text(f"folder = {json.dumps(str(corpus_folder))}\n")
    assert main(["doctor", str(tmp_path / "look.toml")]) == 0 and "healthy" in capsys.readouterr().err


def test_doctor_uses_no_corpus_of_another_tokenizer_that_is_in_the_place_of_the_runs(tmp_path, corpus_folder, monkeypatch):
    """The recipe of mini-zh has `corpus=corpus`, which in the user's working directory may be anything."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus_folder, tmp_path / "corpus")
    result = bertsmith.doctor(folder="mini-zh", quiet=True)
    assert not [finding for finding in result["findings"] if "tokenizer" in finding["name"]]
    assert any("the corpus of the run, corpus, is not here" in item for item in result["not_checked"])
    given = bertsmith.doctor(folder="mini-zh", corpus="corpus", quiet=True)  # as the user says: then it is a finding
    assert given["findings"][0]["name"] == "tokenizer: mismatch"
