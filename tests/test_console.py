"""Console output: aligned tables, progress bars, quiet mode."""

import io
import logging
import sys

import pytest
from rich.cells import cell_len

from bertsmith.console import Console, StderrHandler, log_to_stderr, logger


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
