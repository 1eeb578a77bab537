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
    "pretrained": "errors config",
    "artifacts": "errors pretrained.shipped",
    "rng": "errors",
    "console": "errors",
    "processes": "errors",
    "tensors": "errors",
    "device": "errors",
    "metrics": "errors rng",
    "tokenization": "errors config artifacts rng console",
    "tasks": "errors config artifacts rng metrics tokenization",
    "corpus": "errors config artifacts rng processes console tokenization",
    "model": "errors config artifacts rng tensors tokenization.tokenizer tokenization.characters",
    "word_vectors": "errors config artifacts rng metrics tokenization corpus model console",
    "train": "errors config artifacts tensors console device",
    "objectives": "errors config rng corpus tasks model train.loss word_vectors",
    "inference": "errors config artifacts tokenization tasks corpus.collate corpus.loader model objectives device",
    "reports": "errors config artifacts rng tokenization corpus",
    "evaluation": "errors config rng console artifacts metrics tokenization tasks model word_vectors inference reports",
    "runs": "errors config artifacts console model tokenization train",
    "convert": "errors config artifacts tensors console tokenization tasks model word_vectors inference runs pretrained",
    "planning": "errors config corpus model objectives train",
    "diagnostics": "errors config artifacts rng tensors tokenization corpus model objectives train.checkpoint reports",
    "pretraining": "errors config artifacts console device corpus tokenization model word_vectors objectives train runs",
    "finetuning": "errors config artifacts console processes reports tokenization tasks model word_vectors objectives "
    "train runs inference evaluation "
    "pretraining",
    "race": "errors config artifacts console processes tokenization corpus tasks model objectives train runs planning "
    "reports evaluation inference word_vectors pretraining finetuning",
    "commands": "errors config artifacts rng console processes tokenization corpus tasks model convert tensors train "
    "objectives inference reports evaluation device planning diagnostics pretrained word_vectors race runs pretraining finetuning",
    "api": "errors config commands inference pretrained",
    "quickstart": "errors config artifacts console api inference reports commands.show",
    "cli": "errors config commands",
    "__init__": "api",
    "__main__": "cli",
}
NO_TENSORS = "errors config pretrained artifacts rng console tokenization corpus reports api cli __init__"
WITHOUT_TORCH = [name for name in NAMES if name.split(".")[0] in NO_TENSORS.split()]
WITHOUT_TORCH += ["commands", "commands.prepare", "commands.tokenizer", "quickstart.docstrings"]
WITHOUT_TORCH += ["word_vectors", "word_vectors.keyed_vectors", "word_vectors.files", "word_vectors.benchmarks"]


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
        ("tokenization.fast_encode", "from ..corpus.store import Corpus", "corpus.store"),
        ("tokenization.fast_encode", "from ..corpus import store", "corpus.store"),
        ("tokenization.fast_encode", "def f():\n    from .. import corpus", "corpus"),
        ("corpus.sampling.sentence_pairs", "from ...model.packing import Layout", "model.packing"),
        ("corpus.store", "import bertsmith.cli", "cli"),
        ("model.checkpoint", "from ..tokenization.documents import found", "tokenization.documents"),
        ("objectives.mlm", "from ..train.trainer import Trainer", "train.trainer"),
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
