"""The command line of the benchmarks: help, names and options."""

import ast
import re
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.options import BENCHMARKS, DEFAULT_BENCHMARKS, format_help, parse_arguments
from bertsmith.errors import UserError

FOLDER = Path(__file__).parents[2] / "benchmarks"
# Modules that read options for a benchmark, besides its own.
SHARED_MODULES = {"inputs": {"texts", "tokenizer"}, "weights": {"model", "size"}}
OPTION = re.compile(r"""(?:int_option\(|options\.get\(|options\[)\s*"([\w.]+)\"""")


def test_benchmarks_without_names_are_the_default_ones():
    assert parse_arguments([]) == (list(DEFAULT_BENCHMARKS), {})
    assert parse_arguments(["loading", "rounds=2"]) == (["loading"], {"rounds": "2"})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["vector"], "unknown benchmark 'vector'; did you mean 'vectors'?"),
        (["loading", "round=2"], "loading: unknown option 'round'; did you mean 'rounds'?"),
        (["loading", "bfqw=a.toml"], "loading: unknown option 'bfqw'; choose from "),
        (["long_questions", "dev=a", "out=b"], "long_questions needs model=... squad=...; see `python -m benchmarks long_q"),
    ],
)
def test_benchmarks_refuse_unknown_names_and_options(args, message):
    with pytest.raises(UserError, match=re.escape(message)):
        parse_arguments(args)


def test_benchmarks_command_ends_with_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "vectors", "method=cbow"])
    with pytest.raises(SystemExit, match=r"^error: vectors: unknown option 'method'; did you mean 'methods'"):
        command.main()


def test_benchmarks_help_lists_all_with_their_options(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--help"])
    command.main()
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 120
    for name, benchmark in BENCHMARKS.items():
        assert f"\n{name}: {benchmark.summary}\n" in page
        assert all(option in page for option in benchmark.options)
    page = format_help(["scaling"])
    assert all(f"  {option} " in page and meaning in page for option, meaning in BENCHMARKS["scaling"].options.items())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_options_are_those_that_the_module_reads(name):
    """Options read by name in the source are declared, and declared options are named in some module."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in ast.parse(source).body)
    declared = set(BENCHMARKS[name].options)
    assert set(OPTION.findall(source)) <= declared
    sources = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py") if path.name != "options.py")
    for option in declared:
        kind, _, column = option.partition(".")
        assert f'"{kind}"' in sources and (not column or f'"{column}"' in sources), option


def test_benchmarks_shared_inputs_are_declared_options():
    for module, options in SHARED_MODULES.items():
        source = (FOLDER / f"{module}.py").read_text(encoding="utf-8")
        assert set(OPTION.findall(source)) == options <= set(BENCHMARKS["finetuning"].options)
