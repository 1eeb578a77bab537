"""Errors of the system in one line: what, where, and a way out."""

import errno
import os
import subprocess
import sys

import pytest

from bertsmith.errors import explain_limit, explain_os_error
from tests.support.cli import ROOT


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_error_of_the_system_has_its_place_and_a_way_out(number):
    problem, _, way_out = explain_os_error(OSError(number, os.strerror(number), "/data/a")).rpartition("; ")
    assert problem == f"/data/a: {os.strerror(number)}" and len(way_out.split()) > 2


def test_an_error_without_a_path_or_number_has_a_way_out():
    assert explain_os_error(OSError("it failed")).startswith("it failed; check ")
    assert explain_os_error(OSError()).startswith("OSError; check ")


def test_a_renaming_names_both_paths():
    error = OSError(errno.EXDEV, os.strerror(errno.EXDEV), "/a", None, "/b")
    assert explain_os_error(error).startswith("/a -> /b: Invalid cross-device link; ")


def test_an_error_that_is_no_limit_of_the_system_is_not_explained():
    assert explain_limit(ValueError("a")) is None
    assert explain_limit(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "a")) is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are UTF-8 in every locale")
@pytest.mark.parametrize("arguments", [("texts=\u6570\u636e.txt", "out=o"), ("recipe.toml",), ("texts=folder", "out=o")])
def test_names_beyond_the_encoding_of_an_old_locale_are_refused_in_one_line(tmp_path, arguments):
    """The message spoke of bytes that are not UTF-8, and a name in a recipe ended in a traceback."""
    (tmp_path / "recipe.toml").write_text('texts = "a.txt"\nout = "\u8f93\u51fa"\n', encoding="utf-8")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "a.txt", tmp_path / "folder" / "\u6570\u636e.txt"):
        path.write_text("a text")
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "bertsmith", "tokenizer", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not (tmp_path / "o").exists()
    assert "is not in the encoding of file names and arguments, ascii here: unset PYTHONUTF8" in done.stderr
