"""Imports point one way, torch stays where tensors are, and asking for help loads neither it nor numpy."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import bertsmith

ROOT = Path(bertsmith.__file__).parent
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")}

# What each part of the package may import, besides itself: a new part says here where it stands.
MAY_IMPORT = {
    "errors": "",
    "config": "errors",
    "models": "errors config",
    "artifacts": "errors models.shipped",
    "random": "errors",
    "screen": "errors",
    "workers": "errors",
    "jobs": "errors workers",
    "tensors": "errors",
    "place": "errors",
    "docstrings": "errors",
    "packages": "docstrings",
    "text": "errors config artifacts random",
    "metrics": "errors random",
    "tasks": "errors config artifacts random metrics text",
    "corpus": "errors config artifacts random workers text",
    "vectors": "errors artifacts metrics text",
    "model": "errors config artifacts random tensors text.tokenizer text.lexicon text.grams",
    "convert": "errors config artifacts tensors text tasks model",
    "train": "errors config artifacts tensors screen place",
    "objectives": "errors config random corpus tasks model train.loss",
    "runtime": "errors model corpus.batches",
    "fill": "errors text tasks model runtime",
    "replies": "text tasks model runtime",
    "continuing": "errors text tasks model runtime fill",
    "predict": "errors config artifacts text tasks model objectives place runtime fill replies continuing",
    "show": "errors config artifacts random text corpus",
    "evaluate": "errors config metrics text tasks model predict show",
    "plan": "errors config corpus model objectives train",
    "race": "errors text corpus tasks model objectives plan show evaluate",
    "doctor": "errors config artifacts random tensors text corpus model objectives train.state show",
    "stages": "errors config artifacts random screen jobs text corpus tasks model convert tensors train objectives predict "
    "show evaluate runtime place plan doctor models vectors race continuing",
    "api": "errors config stages runtime predict models",
    "lesson": "api predict screen show.lesson",
    "quickstart": "errors config artifacts screen docstrings packages lesson api predict show stages.show",
    "cli": "errors config stages",
    "__init__": "api",
    "__main__": "cli",
}
NO_TENSORS = "errors config models artifacts random screen docstrings packages text corpus vectors show api cli __init__"
WITHOUT_TORCH = [name for name in NAMES if name.split(".")[0] in NO_TENSORS.split()]
WITHOUT_TORCH += ["stages", "stages.prepare", "stages.tokenizer"]


class Import(NamedTuple):
    where: str  # file:line
    target: str  # a dotted name, from the package's root for its own modules: .text.tokenizer


def imports(name: str, source: str, path: Path = ROOT / "-") -> Iterator[Import]:
    """Every import of a module of that name, those inside functions too."""
    package = name.split(".") if path.name == "__init__.py" and name != "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        where = f"{path.relative_to(ROOT.parent)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (Import(where, _own(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield Import(where, _own(str(node.module)))
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                target = whole if whole in NAMES else ".".join(base)
                if target:  # `from . import __version__` is of no module
                    yield Import(where, f".{target}")


def _own(name: str) -> str:
    return name.removeprefix("bertsmith") if name.startswith("bertsmith.") else name


def part(name: str) -> str:
    return name.split(".")[0]


def wrong(name: str, found: Import) -> str | None:
    """Why a module may not import that, in words; None if it may."""
    target = found.target.removeprefix(".")
    if target == found.target or part(target) == part(name):
        return None
    allowed = MAY_IMPORT[part(name)].split()
    if any(target == one or target.startswith(f"{one}.") for one in allowed):
        return None
    return f"{found.where} imports {target}; {part(name)} may import only: {', '.join(allowed) or 'nothing of the package'}"


@pytest.mark.parametrize("name", NAMES)
def test_imports_point_down_the_layers(name):
    assert part(name) in MAY_IMPORT, f"say in MAY_IMPORT of {Path(__file__).name} what {part(name)} may import"
    found = imports(name, NAMES[name].read_text(encoding="utf-8"), NAMES[name])
    faults = [fault for one in found if (fault := wrong(name, one))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("text.pieces", "from ..corpus.store import Corpus", "corpus.store"),
        ("text.pieces", "from ..corpus import store", "corpus.store"),
        ("text.pieces", "def f():\n    from .. import corpus", "corpus"),
        ("corpus.views.pairs", "from ...model.layout import Layout", "model.layout"),
        ("corpus.store", "import bertsmith.cli", "cli"),
        ("model.checkpoint", "from ..text.documents import found", "text.documents"),
        ("objectives.masked", "from ..train.trainer import Trainer", "train.trainer"),
        ("errors", "from . import config", "config"),
    ],
)
def test_an_import_that_points_up_is_named(name, source, target):
    faults = [wrong(name, one) for one in imports(name, source)]
    assert len(faults) == 1 and f"imports {target}; {part(name)} may import only" in str(faults[0])


def test_the_layers_have_no_circle():
    allowed = {name: {part(one) for one in words.split()} for name, words in MAY_IMPORT.items()}
    while ground := [name for name, below in allowed.items() if not below & allowed.keys()]:
        for name in ground:
            del allowed[name]
    assert not allowed, f"these wait for one another: {', '.join(allowed)}"


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_torch_is_not_named_where_there_are_no_tensors(name):
    found = imports(name, NAMES[name].read_text(encoding="utf-8"), NAMES[name])
    faults = [f"{one.where} imports {one.target}" for one in found if part(one.target) in ("torch", "safetensors")]
    assert not faults, "\n".join(faults)


def loaded(code: str) -> set[str]:
    """The packages a fresh Python has loaded after running something."""
    code += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split())


CALL = "from bertsmith.cli import main; main(['{}'])"


@pytest.mark.parametrize("code", ["import bertsmith", CALL.format("--help"), CALL.format("--version")])
def test_importing_and_asking_for_help_load_neither_torch_nor_numpy(code):
    names = loaded(code)
    assert "bertsmith" in names and not names & {"torch", "numpy", "rich", "tokenizers", "safetensors"}


def test_text_and_corpus_are_made_without_torch():
    names = loaded("\n".join(f"import bertsmith.{name}" for name in WITHOUT_TORCH if name != "__init__"))
    assert "numpy" in names and "torch" not in names
