"""Console output: aligned tables, progress bars, quiet mode."""

import ast
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

import bertsmith
from bertsmith.console import Console, StderrHandler, escape_controls, escape_unencodable, log_to_stderr, logger, print_result
from tests.support.cli import run_cli_error


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def stderr_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""  # stdout is for results
    return captured.err.splitlines()


def test_console_table_columns_align(capsys):
    Console().print_table("title", [("a", "1"), ("longer", "22"), ("", "3")])
    assert stderr_lines(capsys) == ["title", "  a       1", "  longer  22", "          3"]


def test_console_table_columns_align_with_wide_and_combining_characters(capsys):
    rows = [("猫和狗", "x"), ("cats", "x"), ("ｆｕｌｌ", "x"), ("cafe\u0301", "x"), ("かな", "x")]
    Console().print_table("动物", rows)
    title, *lines = stderr_lines(capsys)
    assert title == "动物"
    assert [cell_len(line.removesuffix("x")) for line in lines] == [2 + 8 + 2] * len(rows)


def test_console_table_without_rows_is_its_title(capsys):
    Console().print_table("title", [])
    assert stderr_lines(capsys) == ["title"]


def test_console_quiet_prints_warnings_only(capsys):
    console = Console(quiet=True)
    console.info("words")
    console.print_table("title", [("a", "1")])
    with console.progress_bar("working") as update:
        update(1, 2)
    assert stderr_lines(capsys) == []
    console.warn("no validation text")
    assert stderr_lines(capsys) == ["warning: no validation text"]


def test_console_progress_bar_needs_a_terminal(capsys):
    with Console().progress_bar("working", "bytes") as update:
        update(1, 2)
    assert stderr_lines(capsys) == []


@pytest.mark.parametrize(("unit", "amount"), [("", "3/4"), ("bytes", "3/4 bytes")])
def test_console_progress_bar_on_a_terminal(monkeypatch, unit, amount):
    terminal = FakeTerminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal)
    with Console().progress_bar("preparing", unit) as update:
        update(3, 4)
    assert "preparing" in terminal.getvalue() and amount in terminal.getvalue()


def test_console_quiet_progress_bar_prints_nothing(monkeypatch):
    terminal = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Console(quiet=True).progress_bar("preparing") as update:
        update(3, 4)
    assert terminal.getvalue() == ""


def test_console_messages_go_to_the_logger_of_the_package(caplog):
    with caplog.at_level(logging.INFO, logger="bertsmith"):
        Console().info("100 % done")
        Console(quiet=True).warn("no validation text")
    assert caplog.record_tuples == [
        ("bertsmith", logging.INFO, "100 % done"),
        ("bertsmith", logging.WARNING, "no validation text"),
    ]


def test_log_to_stderr_leaves_a_configured_program_alone(capsys, monkeypatch):
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    with log_to_stderr(only_if_unconfigured=True):
        Console().info("for the handlers of the program")
    assert capsys.readouterr().err == ""
    with log_to_stderr(), log_to_stderr():  # nested: one handler
        Console().info("shown once")
    assert capsys.readouterr().err == "shown once\n"
    assert not any(isinstance(handler, StderrHandler) for handler in logger.handlers)


def test_handlers_of_a_program_receive_the_messages_of_a_function(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(logger, "handlers", [])  # that of the tests
    (tmp_path / "a.txt").write_text("one sentence\nand another\n\na second document of words\n" * 20)
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        bertsmith.train_tokenizer(texts=str(tmp_path / "a.txt"), kind="char", out=str(tmp_path / "tokenizer"))
        assert "bertsmith INFO   fertility (tokens per word)" in lines.getvalue()
        lines.truncate(0)
        bertsmith.train_tokenizer(texts=str(tmp_path / "a.txt"), kind="char", out=str(tmp_path / "quiet"), quiet=True)
        assert "bertsmith" not in lines.getvalue()
    finally:
        logging.getLogger().removeHandler(handler)
        logger.setLevel(level)
    assert capsys.readouterr() == ("", "")


def run_with_ascii_streams(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    return subprocess.run(
        [sys.executable, "-m", "bertsmith", *args], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )


def test_console_output_in_ascii_is_escaped(tmp_path):
    (tmp_path / "猫.txt").write_text("你好😀\n世界\n" * 20, encoding="utf-8")
    process = run_with_ascii_streams(tmp_path, "tokenizer", "texts=猫.txt", "kind=char", "out=猫", "--json")
    result = json.loads(process.stdout)
    assert result["out"].endswith("猫") and process.stdout.isascii()
    assert "\\u732b" in process.stderr and process.stderr.isascii()
    assert run_with_ascii_streams(tmp_path, "tokenizer", "texts=猫.txt", "kind=char", "out=b", "--quiet").stderr == ""


def test_unencodable_characters_are_escaped_as_json(tmp_path):
    with (tmp_path / "a.json").open("w", encoding="ascii") as out:
        escape_unencodable(out)
        out.write('"é猫😀"')
    assert (tmp_path / "a.json").read_text() == '"\\u00e9\\u732b\\ud83d\\ude00"'
    assert json.loads((tmp_path / "a.json").read_text()) == "é猫😀"


HOSTILE = "\x1b]0;title\x07\x9b31m\x7f\u202etxt.exe\rforged"


def test_control_characters_are_escaped_as_in_json():
    assert escape_controls("Größe 猫 \N{GRINNING FACE}") == "Größe 猫 \N{GRINNING FACE}"
    escaped = escape_controls(HOSTILE + "\n")
    assert escaped.isprintable() and json.loads(f'"{escaped}"') == HOSTILE + "\n"
    assert escape_controls("a\tb\nc\x1b", keep_lines=True) == "a\tb\nc\\u001b"


def test_whatever_is_printed_is_escaped(capsys):
    with log_to_stderr():
        console = Console()
        console.info(f"labels: {HOSTILE}")
        console.warn(f"column {HOSTILE}\nerror: forged")
        console.print_table(f"{HOSTILE}", [(HOSTILE, "1"), ("label", "2")])
    print_result(json.dumps({"label": HOSTILE}, ensure_ascii=False))
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 5 and all(map(str.isprintable, lines))
    assert lines[-1].index("2") == lines[-2].rindex("1")  # columns are aligned as they are shown
    assert captured.out.rstrip("\n").isprintable() and json.loads(captured.out) == {"label": HOSTILE}


def test_errors_are_one_printable_line(tmp_path):
    (tmp_path / "d.tsv").write_text("te\x1b[31mxt\tla\x9b1mbel\na\tb\n")
    message = run_cli_error("finetune", "task=classify", "model=mini-en", f"data.train={tmp_path}/d.tsv", "out=x\n\x1b[0m")
    assert message.startswith("error: ") and message.rstrip("\n").isprintable()


def test_only_the_console_prints():
    root = Path(bertsmith.__file__).parent
    for path in root.rglob("*.py"):
        if path.name in ("console.py", "codegen.py"):
            continue
        calls = (node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
        names = {ast.unparse(call) for call in calls}
        assert not names & {"print", "sys.stdout.write", "sys.stdout.writelines", "sys.stderr.write"}, path
