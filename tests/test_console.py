"""What a person sees: columns that align on a terminal, and silence where it was asked for."""

import io
import sys

import pytest
from rich.cells import cell_len

from bertsmith.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    told = capsys.readouterr()
    assert told.out == ""  # stdout is for answers
    return told.err.splitlines()


def test_columns_of_a_table_align(capsys):
    Console().print_table("title", [("a", "1"), ("longer", "22"), ("", "3")])
    assert lines(capsys) == ["title", "  a       1", "  longer  22", "          3"]


def test_columns_align_behind_characters_twice_as_wide_and_of_no_width(capsys):
    rows = [("猫和狗", "x"), ("cats", "x"), ("ｆｕｌｌ", "x"), ("cafe\u0301", "x"), ("かな", "x")]
    Console().print_table("动物", rows)
    title, *told = lines(capsys)
    assert title == "动物"
    assert [cell_len(line.removesuffix("x")) for line in told] == [2 + 8 + 2] * len(rows)


def test_a_table_of_no_rows_is_its_title(capsys):
    Console().print_table("title", [])
    assert lines(capsys) == ["title"]


def test_quiet_says_nothing_but_warnings(capsys):
    screen = Console(quiet=True)
    screen.info("words")
    screen.print_table("title", [("a", "1")])
    with screen.progress_bar("working") as advance:
        advance(1, 2)
    assert lines(capsys) == []
    screen.warn("no validation text")
    assert lines(capsys) == ["warning: no validation text"]


def test_a_bar_is_silent_where_there_is_no_terminal(capsys):
    with Console().progress_bar("working", "bytes") as advance:
        advance(1, 2)
    assert lines(capsys) == []


@pytest.mark.parametrize(("unit", "amount"), [("", "3/4"), ("bytes", "3/4 bytes")])
def test_a_bar_is_drawn_on_a_terminal(monkeypatch, unit, amount):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal)
    with Console().progress_bar("preparing", unit) as advance:
        advance(3, 4)
    assert "preparing" in terminal.getvalue() and amount in terminal.getvalue()


def test_a_quiet_bar_is_silent_on_a_terminal_too(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Console(quiet=True).progress_bar("preparing") as advance:
        advance(3, 4)
    assert terminal.getvalue() == ""
