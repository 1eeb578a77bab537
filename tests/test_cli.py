"""The command line: exit statuses, one-line errors, one JSON object on stdout."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bertsmith
from bertsmith import __version__, cli
from bertsmith.commands import STAGES, load_stage
from bertsmith.corpus.build import Prepare
from bertsmith.errors import Interrupted, UserError
from tests.support.cli import run_cli_error

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "mat", "."]


@pytest.fixture
def argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a small `prepare` run, with its files in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text("\n".join(TOKENS) + "\n")
    Path("text.txt").write_text("The cat sat.\nCats sat on the mat.\n\nThe mat sat on the cat.\n")
    return ["prepare", "texts=text.txt", "tokenizer=vocab.txt", "out=corpus", "workers=1"]


def error_line(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a command that fails with exit status 2; returns its one-line error."""
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1 and captured.err.startswith("error: "), captured.err
    return captured.err


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_cli_help_lists_every_stage(capsys, argv):
    assert cli.main(argv) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and cli.USAGE in captured.out
    for name, description in STAGES.items():
        assert any(line.split(maxsplit=1) == [name, description] for line in captured.out.splitlines())


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["key=value", "--json", "--help"]])
def test_cli_stage_help(capsys, name, argv):
    assert cli.main([name, *argv]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and f"bertsmith {name} [RECIPE.toml]" in captured.out
    assert captured.out.endswith(f"`bertsmith {name} --help all` lists every key.\n")


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_cli_version(capsys, word):
    assert cli.main([word]) == 0 and capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("argv", [[], ["finetune"], ["finetune", "task=tag"], ["pretrain", "all"]])
def test_cli_help_as_a_command(capsys, argv):
    assert cli.main(["help", *argv]) == 0
    page = capsys.readouterr().out
    assert cli.main([*argv[:1], "--help", *argv[1:]]) == 0 and capsys.readouterr().out == page


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["prepar"], "unknown stage 'prepar'; did you mean 'prepare'?"),
        (["qqq"], "unknown stage 'qqq'; choose from tokenizer, prepare"),
        (["--jsn"], "unknown option --jsn; usage: bertsmith STAGE"),
        (["prepare", "--jsn"], "unknown option --jsn"),
        (["prepare", "--workers=3"], "unknown option --workers=3; settings are written key=value"),
        (["prepare", "workrs=3"], "unknown key 'workrs'; did you mean 'workers'?"),
        (["prepare", "workers=three"], "workers takes a whole number, not 'three'"),
        (["prepare", "language=fr"], "language = 'fr' is not valid; choose from en, zh"),
        (["prepare", "workers=1"], "texts is required: text files"),
        (["prepare", "absent.toml"], "there is no recipe file absent.toml"),
        (["prepare", "workers"], "unexpected argument 'workers'; settings are written key=value, without spaces around ="),
        (["prepare", "workers", "=", "2"], "unexpected argument 'workers'; settings are written key=value, without spaces"),
        (["prepare", "workers=", "2"], "unexpected argument '2'; settings are written key=value, without spaces around ="),
        (
            ["prepare", "texts=a.txt", "b.txt"],
            "quotes around spaces ('texts=a.txt b.txt') and commas between the items of a list",
        ),
        (["prepare", "abc"], "unexpected argument 'abc'; settings are written key=value, and a recipe is a TOML file"),
        (["prepare", "--out", "x"], "unknown option --out; settings are written key=value (out=...)"),
        (["finetune", "--label-names=a"], "settings are written key=value (label_names=a)"),
        (
            ["finetune", "text-classification"],
            "unexpected argument 'text-classification'; settings are written key=value: did you mean task=classify?",
        ),
        (["ner"], "unknown stage 'ner'; did you mean `bertsmith finetune task=tag`?"),
        (["classify"], "did you mean `bertsmith finetune task=classify`?"),
        (["generate"], "did you mean 'predict'?"),
        (["train"], "`bertsmith pretrain` trains on raw text, `bertsmith finetune` on a task"),
        (["help", "prepar"], "unknown stage 'prepar'; did you mean 'prepare'?"),
        (["prepare", "a.toml", "workers"], "unexpected argument 'workers'; settings are written key=value"),
        (["fill-mask"], "unknown stage 'fill-mask'; did you mean 'predict'?"),
        (["fine_tune"], "unknown stage 'fine_tune'; did you mean 'finetune'?"),
        (["predict", "mini-en", "a text", "another"], "unexpected argument 'another'"),
        (["show", "attention", "model=mini-en", "text=the king"], "unknown key 'text'; did you mean 'texts'?"),
        (["predict", "mini-en", "textt=a"], "unknown key 'textt'; did you mean 'text'?"),
        (["show", "msks", "out=a.html"], "kind = 'msks' is not valid; did you mean 'masks'?"),
    ],
)
def test_cli_bad_input_is_one_line_and_exit_status_2(capsys, argv, message):
    assert message in error_line(capsys, *argv)


def test_cli_missing_files_are_one_line_and_exit_status_2(capsys, argv):
    assert "absent.txt" in error_line(capsys, *argv, "texts=absent.txt")
    assert "absent/vocab.txt" in error_line(capsys, *argv, "tokenizer=absent/vocab.txt")
    Path("taken").write_text("a file")
    assert "taken" in error_line(capsys, *argv, "out=taken/corpus")
    Path("folder.toml").mkdir()
    assert "folder.toml" in error_line(capsys, "prepare", "folder.toml")
    assert not Path("corpus").exists()


def test_cli_json_goes_to_stdout_messages_to_stderr(capsys, argv):
    assert cli.main([*argv, "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (
        captured.out.count("\n") == 1 and result["out"] == "corpus" and result["created"] is True and result["documents"] == 2
    )
    assert "documents" in captured.err and "{" not in captured.err


def test_cli_stdout_is_empty_without_json(capsys, argv):
    assert cli.main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "documents" in captured.err


def test_cli_quiet_prints_warnings_only(capsys, argv):
    assert cli.main([*argv, "--quiet", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["tokens"] > 0
    assert all(line.startswith("warning: ") for line in captured.err.splitlines())


def test_cli_settings_override_the_recipe(capsys, argv):
    Path("run.toml").write_text('texts = "text.txt"\ntokenizer = "vocab.txt"\nout = "one"\nworkers = 1\n')
    assert cli.main(["prepare", "run.toml", "out=two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == "two"
    assert Path("two").is_dir() and not Path("one").exists()


def test_cli_same_command_again_does_nothing(capsys, argv):
    assert cli.main(argv) == cli.main([*argv, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["created"] is False and "already exists" in captured.err


class FakeStage:
    """A stage that raises `outcome` if it is an exception, else returns it."""

    def __init__(self, outcome: object) -> None:
        self.Recipe, self.outcome = Prepare, outcome

    def run(self, recipe: Prepare, quiet: bool) -> object:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "code", "line"),
    [
        (UserError("the corpus is empty"), 2, "error: the corpus is empty"),
        (Interrupted("at step 7; run the same command again"), 130, "interrupted: at step 7; run the same command again"),
        (KeyboardInterrupt(), 130, "interrupted: run the same command again to resume"),
        (
            FileNotFoundError(2, "No such file or directory", "a/b.bin"),
            2,
            "error: a/b.bin: No such file or directory; check the path",
        ),
        (
            OSError(28, "No space left on device"),
            2,
            "error: No space left on device; free some space, and run the same command again",
        ),
        (
            OSError("the disk is gone"),
            2,
            "error: the disk is gone; check the path and its file system, or choose another place",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_cli_exit_status_and_message_of_errors(capsys, monkeypatch, argv, outcome, code, line):
    monkeypatch.setattr(cli, "load_stage", lambda name: FakeStage(outcome))
    assert cli.main([*argv, "--json"]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == f"{line}\n"


def test_cli_bugs_are_not_hidden(monkeypatch, argv):
    monkeypatch.setattr(cli, "load_stage", lambda name: FakeStage(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        cli.main(argv)


def test_cli_json_writes_nan_as_null(capsys, monkeypatch, argv):
    monkeypatch.setattr(cli, "load_stage", lambda name: FakeStage({"loss": float("nan"), "out": "语料"}))
    assert cli.main([*argv, "--json"]) == 0
    assert capsys.readouterr().out == '{"loss":null,"out":"语料"}\n'


def test_cli_first_argument_may_be_the_kind(capsys, monkeypatch):
    recipes = []
    module = load_stage("show")
    run = lambda recipe, quiet: recipes.append(recipe) or {}
    monkeypatch.setattr(cli, "load_stage", lambda name: SimpleNamespace(Recipe=module.Recipe, run=run))
    assert cli.main(["show", "masks", "corpus=c", "out=a.html", "kind=masks"]) == 0
    assert recipes[0] == module.Recipe(kind="masks", corpus="c", out="a.html")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (["out/mood", "a fine film"], {"text": "a fine film"}),
        (["out/mood", "x = y, he said"], {"text": "x = y, he said"}),
        (["out/mood", "- a list item"], {"text": "- a list item"}),
        (["out/mood", "data=in.tsv"], {"data": "in.tsv"}),
        (["out/mood", '[MASK] is "here"', "top_k=2"], {"text": '[MASK] is "here"', "top_k": 2}),
        (["model=out/mood", 'text="Hi"'], {"text": '"Hi"'}),
    ],
)
def test_cli_model_and_text_by_position(monkeypatch, arguments, values):
    recipes = []
    module = load_stage("predict")
    run = lambda recipe, quiet: recipes.append(recipe) or {}
    monkeypatch.setattr(cli, "load_stage", lambda name: SimpleNamespace(Recipe=module.Recipe, run=run))
    assert cli.main(["predict", *arguments]) == 0
    assert recipes == [module.Recipe(model="out/mood", **values)]


def test_cli_reader_that_stops_early_is_no_error(tmp_path):
    """`bertsmith ... --help all | head -1` ends without a message."""
    script = f"{sys.executable} -m bertsmith finetune --help all | head -1; exit ${{PIPESTATUS[0]}}"
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert completed.stderr == "" and completed.stdout.startswith("usage: ") and completed.returncode in (0, 141)


def test_cli_python_m_is_the_same_command(argv):
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "bertsmith"]
    completed = subprocess.run([*command, *argv, "--json"], capture_output=True, text=True, env=environment)
    assert completed.returncode == 0 and json.loads(completed.stdout)["out"] == "corpus"
    bad = subprocess.run([*command, "prepare", "workrs=1"], capture_output=True, text=True, env=environment)
    assert bad.returncode == 2 and bad.stdout == "" and bad.stderr.startswith("error: ") and bad.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.EFBIG, "File too large", "out/x"),
            "out/x: File too large; the file system or `ulimit -f` forbids larger",
        ),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "Too many open files; raise the limit of this process (`ulimit -n 4096`)",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; free some space"),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory (Unable to allocate 9 TiB); use smaller inputs"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
            "not enough memory (DefaultCPUAllocator: can't",
        ),
        (RecursionError("maximum recursion depth"), "the input is nested too deeply"),
        (RuntimeError("can't start new thread"), "the system starts no more threads; use fewer workers"),
        (BaseException("ThreadPoolBuildError { kind: WouldBlock }"), "the system starts no more threads"),  # a panic in Rust
        (SystemError("error return without exception set"), "not enough memory (error return"),
    ],
)
def test_errors_of_the_system_name_the_place_and_a_way_out(error, message, monkeypatch):
    def fail(*args):
        raise error

    monkeypatch.setattr("bertsmith.cli._dispatch", fail)
    assert run_cli_error("prepare").startswith(f"error: {message}")


def test_reader_of_the_output_that_stops_is_no_error():
    """`bertsmith ... | head`: 128 + SIGPIPE, and nothing on stderr."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "bertsmith", "--help"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("path", ["/", "..", "~nobody/x", "loop", "pipe"])
@pytest.mark.parametrize(
    "words",
    [
        ["tokenizer", "texts={}"], ["prepare", "texts=text.txt", "tokenizer={}"], ["pretrain", "corpus={}"],
        ["import", "source={}"], ["export", "model={}"], ["convert-long", "model={}"],
        ["finetune", "task=classify", "model={}", "data.train=text.txt"],
        ["predict", "model={}", "text=a"], ["embed", "model={}", "text=a"], ["evaluate", "model={}", "data=text.txt"],
        ["doctor", "{}"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_inputs_that_are_no_artifacts_are_one_line(tmp_path, monkeypatch, words, path):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("text.txt").write_text("a line")
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    if words[0] == "tokenizer" and path in ("/", ".."):
        path += "/absent"  # a folder of texts is an input
    message = run_cli_error(
        *(word.format(path) for word in words), *["out=o"] * (words[0] not in ("predict", "embed", "doctor"))
    )
    assert message.startswith("error: ") and not Path("o").exists()


@pytest.mark.parametrize("setting", ["texts=caf\udce9.txt", "sentences=\ud800", "segmenter=\udce9:f"])
def test_arguments_that_are_not_utf8_are_refused_before_any_work(tmp_path, setting):
    message = run_cli_error("prepare", setting, f"out={tmp_path}/o", "tokenizer=mini-en")
    assert "has bytes that are not UTF-8" in message and not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8")
def test_file_names_that_are_not_utf8_are_refused_before_any_work(tmp_path, vocabulary):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "caf\udce9.txt").write_text("a line")
    message = run_cli_error("prepare", f"texts={tmp_path}/texts", f"out={tmp_path}/o", f"tokenizer={vocabulary}")
    assert "caf\\udce9.txt' has bytes that are not UTF-8" in message and [p.name for p in tmp_path.iterdir()] == ["texts"]


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are UTF-8")
def test_functions_refuse_names_that_no_record_can_hold(tmp_path, vocabulary):
    path = tmp_path / "caf\udce9.txt"
    path.write_text("a line")
    with pytest.raises(UserError, match="has bytes that are not UTF-8"):
        bertsmith.train_tokenizer(texts=[str(path)], vocab_size=100, out=tmp_path / "o")
    with pytest.raises(UserError, match="has bytes that are not UTF-8"):
        bertsmith.prepare(texts=[str(path)], tokenizer=vocabulary, out=tmp_path / "o", sentences="\ud800")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
