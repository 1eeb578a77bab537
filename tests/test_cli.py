"""The command line keeps its promises: exit codes, one readable line for a mistake, one JSON object on stdout."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertsmith import __version__, cli
from bertsmith.commands import STAGES, load_stage
from bertsmith.config import iter_keys
from bertsmith.corpus.build import Prepare
from bertsmith.errors import Interrupted, UserError

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "mat", "."]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `prepare` needs, in the folder it is called from."""
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text("\n".join(PIECES) + "\n")
    Path("text.txt").write_text("The cat sat.\nCats sat on the mat.\n\nThe mat sat on the cat.\n")
    return ["prepare", "texts=text.txt", "tokenizer=vocab.txt", "out=corpus", "workers=1"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that says what is wrong."""
    assert cli.main(words) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1 and told.err.startswith("error: "), told.err
    return told.err


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_names_every_stage(capsys, words):
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert told.err == "" and cli.USAGE in told.out
    for name, meaning in STAGES.items():
        assert any(line.split(maxsplit=1) == [name, meaning] for line in told.out.splitlines())


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("words", [["--help"], ["-h"], ["key=value", "--json", "--help"]])
def test_the_page_of_a_stage_lists_every_key(capsys, name, words):
    assert cli.main([name, *words]) == 0
    told = capsys.readouterr()
    assert told.err == "" and f"bertsmith {name} [RECIPE.toml]" in told.out
    for key in iter_keys(load_stage(name).Recipe):
        line = next(line for line in told.out.splitlines() if line.startswith(f"  {key.name} "))
        assert key.default in line and key.description in line and key.type_name in line


def test_the_version_is_told(capsys):
    assert cli.main(["--version"]) == 0 and capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["prepar"], "there is no stage 'prepar'; did you mean 'prepare'?"),
        (["qqq"], "there is no stage 'qqq'; known: tokenizer, prepare"),
        (["--jsn"], "there is no stage '--jsn'"),
        (["prepare", "--jsn"], "there is no option --jsn"),
        (["prepare", "--workers=3"], "there is no option --workers=3; settings are key=value"),
        (["prepare", "workrs=3"], "workrs is not known; did you mean 'workers'?"),
        (["prepare", "workers=three"], "workers = 'three': expected `int`, got `str`"),
        (["prepare", "language=fr"], "language = 'fr' is not known"),
        (["prepare", "workers=1"], "texts is missing"),
        (["prepare", "absent.toml"], "there is no recipe absent.toml"),
        (["prepare", "workers"], "there is no recipe workers; a recipe is a TOML file, a setting is key=value"),
        (["prepare", "a.toml", "workers"], "'workers' is not key=value, and there is a recipe already (a.toml)"),
        (["show", "msks", "out=a.html"], "kind = 'msks' is not known; did you mean 'masks'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(capsys, words, told):
    assert told in refused(capsys, *words)


def test_files_that_are_not_there_are_one_line_and_exit_2(capsys, words):
    assert "absent.txt" in refused(capsys, *words, "texts=absent.txt")
    assert "absent/vocab.txt" in refused(capsys, *words, "tokenizer=absent/vocab.txt")
    Path("taken").write_text("a file")
    assert "taken" in refused(capsys, *words, "out=taken/corpus")
    Path("folder.toml").mkdir()
    assert "folder.toml" in refused(capsys, "prepare", "folder.toml")
    assert not Path("corpus").exists()


def test_json_is_the_last_line_of_stdout_and_words_go_to_stderr(capsys, words):
    assert cli.main([*words, "--json"]) == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert told.out.count("\n") == 1 and result["out"] == "corpus" and result["made"] is True and result["documents"] == 2
    assert "documents" in told.err and "{" not in told.err


def test_without_json_stdout_is_empty(capsys, words):
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert told.out == "" and "documents" in told.err


def test_quiet_says_only_warnings_and_the_result(capsys, words):
    assert cli.main([*words, "--quiet", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["tokens"] > 0
    assert all(line.startswith("warning: ") for line in told.err.splitlines())


def test_a_recipe_is_read_and_settings_override_it(capsys, words):
    Path("run.toml").write_text('texts = "text.txt"\ntokenizer = "vocab.txt"\nout = "one"\nworkers = 1\n')
    assert cli.main(["prepare", "run.toml", "out=two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == "two"
    assert Path("two").is_dir() and not Path("one").exists()


def test_the_same_command_again_says_that_it_is_done(capsys, words):
    assert cli.main(words) == cli.main([*words, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["made"] is False and "is there already" in told.err


class Failing:
    """A stage whose work ends in some way."""

    def __init__(self, end: object) -> None:
        self.Recipe, self.end = Prepare, end

    def run(self, recipe: Prepare, quiet: bool) -> object:
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end


@pytest.mark.parametrize(
    ("end", "code", "line"),
    [
        (UserError("the corpus is empty"), 2, "error: the corpus is empty"),
        (Interrupted("at step 7; run the same command again"), 130, "stopped: at step 7; run the same command again"),
        (KeyboardInterrupt(), 130, "stopped: run the same command again to go on"),
        (FileNotFoundError(2, "No such file or directory", "a/b.bin"), 2, "error: No such file or directory a/b.bin"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device"),
        (OSError("the disk is gone"), 2, "error: the disk is gone"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_how_a_stage_ends_is_how_the_command_ends(capsys, monkeypatch, words, end, code, line):
    monkeypatch.setattr(cli, "load_stage", lambda name: Failing(end))
    assert cli.main([*words, "--json"]) == code
    told = capsys.readouterr()
    assert told.out == "" and told.err == f"{line}\n"


def test_a_mistake_of_ours_is_not_hidden(monkeypatch, words):
    monkeypatch.setattr(cli, "load_stage", lambda name: Failing(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        cli.main(words)


def test_what_is_no_number_is_null_since_json_knows_no_nan(capsys, monkeypatch, words):
    monkeypatch.setattr(cli, "load_stage", lambda name: Failing({"loss": float("nan"), "out": "语料"}))
    assert cli.main([*words, "--json"]) == 0
    assert capsys.readouterr().out == '{"loss":null,"out":"语料"}\n'


def test_a_stage_with_kinds_takes_the_kind_as_its_first_word(capsys, monkeypatch):
    told = []
    module = load_stage("show")
    run = lambda recipe, quiet: told.append(recipe) or {}
    monkeypatch.setattr(cli, "load_stage", lambda name: SimpleNamespace(Recipe=module.Recipe, KINDS=module.KINDS, run=run))
    assert cli.main(["show", "masks", "corpus=c", "out=a.html", "kind=masks"]) == 0
    assert told[0] == module.Recipe(kind="masks", corpus="c", out="a.html")


def test_the_module_is_the_same_command(words):
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "bertsmith"]
    done = subprocess.run([*command, *words, "--json"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and json.loads(done.stdout)["out"] == "corpus"
    bad = subprocess.run([*command, "prepare", "workrs=1"], capture_output=True, text=True, env=environment)
    assert bad.returncode == 2 and bad.stdout == "" and bad.stderr.startswith("error: ") and bad.stderr.count("\n") == 1
