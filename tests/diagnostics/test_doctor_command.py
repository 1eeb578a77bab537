"""`bertsmith doctor FOLDER`: words for people, one JSON object for programs, and an exit code for scripts."""

import json

import pytest

import bertsmith
from bertsmith.cli import main
from tests.diagnostics.builders import chained, corpus


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("repeated"), 3 * chained(60))


def test_a_healthy_folder_says_so_in_a_line(capsys, text):
    assert main(["doctor", str(text)]) == 0
    told = capsys.readouterr()
    assert told.out == "" and told.err == f"{text} (corpus): healthy\n"


def test_problems_are_told_in_words_and_exit_1(capsys, repeated):
    assert main(["doctor", str(repeated)]) == 1
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert told.out == "" and lines[0] == "problem: duplicate lines" and lines[-1] == f"{repeated} (corpus): 1 problem"
    assert [line.split()[0] for line in lines[1:4]] == ["seen", "means", "try"]


def test_json_holds_every_part_of_a_finding(capsys, repeated):
    assert main(["doctor", f"folder={repeated}", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["healthy"], told["problems"], told["notes"]) == ("corpus", False, 1, 0)
    assert told["findings"][0].keys() == {"name", "severity", "seen", "means", "way_out", "setting"}
    assert told == bertsmith.doctor(folder=str(repeated), quiet=True)


def test_quiet_still_names_problems(capsys, repeated, text):
    assert main(["doctor", str(repeated), "--quiet"]) == 1 and main(["doctor", str(text), "--quiet"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"warning: {repeated}: duplicate lines: ")


def test_a_folder_that_is_not_there_is_one_line_and_exit_2(capsys, tmp_path):
    assert main(["doctor", str(tmp_path / "absent"), "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("error: there is no folder") and told.err.count("\n") == 1
    assert main(["doctor"]) == 2 and "folder is missing" in capsys.readouterr().err


def test_a_recipe_may_name_the_folder_too(capsys, tmp_path, text):
    (tmp_path / "look.toml").write_text(f"folder = {json.dumps(str(text))}\n")
    assert main(["doctor", str(tmp_path / "look.toml")]) == 0 and "healthy" in capsys.readouterr().err
