"""Import rules: layers without cycles, torch-free modules, `--help` without torch or numpy, and test files apart."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

import bertsmith
from bertsmith.commands import STAGES
from bertsmith.tasks import TaskConfig

ROOT = Path(bertsmith.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")
}

# What each package may import besides itself; add new packages here.
MAY_IMPORT = {
    "errors": "",
    "reading": "errors",
    "synonyms": "",
    "config": "errors synonyms hub_names",
    "recipes": "errors config",
    "pretrained": "errors config",
    "hub_names": "",
    "writing": "errors",
    "artifacts": "errors hub_names pretrained.shipped writing console",
    "rng": "errors",
    "console": "errors",
    "signals": "",
    "processes": "errors console signals",
    "tensors": "errors writing",
    "cores": "",
    "device": "errors",
    "metrics": "errors rng",
    "tokenization": "errors config artifacts writing rng console",
    "tasks": "errors config artifacts writing rng metrics tokenization",
    "corpus": "errors config artifacts writing rng processes console tokenization",
    "model": "errors config artifacts writing rng tensors device tokenization.tokenizer "
    "tokenization.characters pretrained.shipped",
    "word_vectors": "errors config artifacts writing rng metrics tokenization corpus model console",
    "train": "errors config artifacts writing console tensors device runs signals",
    "objectives": "errors config rng corpus tasks model train.objective word_vectors",
    "inference": "errors cores config artifacts writing tokenization tasks corpus.batches model objectives device "
    "train.objective reports",
    "reports": "errors config artifacts writing rng tokenization corpus",
    "evaluation": "errors config rng console artifacts writing metrics tokenization tasks model word_vectors inference reports",
    "runs": "errors config artifacts writing tensors console signals",
    "convert": "errors config artifacts writing tensors console tokenization tasks model word_vectors objectives "
    "train.objective inference runs pretrained",
    "serving": "errors config artifacts console reading signals tasks inference corpus reports runs pretraining",
    "planning": "errors config console corpus model objectives train runs",
    "diagnostics": "errors config artifacts writing rng tensors tokenization corpus model objectives runs reports",
    "pretraining": "errors config artifacts writing console device corpus tokenization model word_vectors objectives "
    "train runs "
    "signals diagnostics",
    "finetuning": "rng errors config artifacts writing console processes reports tokenization tasks model word_vectors "
    "objectives "
    "train runs inference evaluation diagnostics device",
    "compression": "errors config artifacts writing rng tensors console device corpus tokenization tasks model word_vectors "
    "objectives train runs inference evaluation diagnostics pretrained pretraining finetuning convert reports metrics "
    "processes reading cores",
    "racing": "errors config artifacts writing console processes tokenization corpus tasks model objectives train runs "
    "planning "
    "reports evaluation inference word_vectors pretraining finetuning signals",
    "commands": "errors config hub_names recipes artifacts writing rng console processes tokenization corpus tasks "
    "model convert "
    "tensors train objectives inference reports evaluation device planning diagnostics pretrained word_vectors racing "
    "runs pretraining finetuning compression serving",
    "schema": "errors config commands",
    "help": "errors config recipes commands schema",
    "results": "inference reports",
    "calls": "errors cores config console commands schema tokenization",
    "stage_types": "config",
    "stages": "config calls results stage_types",
    "api": "calls cores errors inference pretrained stages synonyms",
    "quickstart": "errors config stage_types recipes artifacts writing console api tokenization corpus model inference reports "
    "commands.show_pages signals",
    "reference": "commands help schema",
    "codegen": "commands help reference schema",
    "cli": "signals cores errors config recipes console commands schema help synonyms",
    "__init__": "api synonyms",
    "__main__": "cli signals",
}
FOUNDATIONS = ("reading",)  # that every package may import
TORCH_FREE_PACKAGES = (
    "errors reading config recipes pretrained artifacts writing rng console tokenization corpus reports schema help results "
    "calls stages "
    "stage_types api reference codegen cli signals __init__"
)
TORCH_FREE_MODULES = [name for name in MODULES if name.split(".")[0] in TORCH_FREE_PACKAGES.split()]
TORCH_FREE_MODULES += ["commands", "commands.prepare", "commands.tokenizer", "commands.show", "quickstart.docstrings"]
TORCH_FREE_MODULES += ["word_vectors", "word_vectors.keyed_vectors", "word_vectors.files", "word_vectors.benchmarks"]


TASK_CLASSES = {"Task", "TemplateTask", "TextPairTask", *(task.__name__ for task in get_args(TaskConfig))}


class Import(NamedTuple):
    where: str  # file:line
    target: str  # dotted name; own modules relative to the root of the package: .tokenization.tokenizer


def find_imports(name: str, source: str, path: Path = ROOT / "-") -> Iterator[Import]:
    """Every import in the source of a module, also inside functions."""
    package = name.split(".") if path.name == "__init__.py" and name != "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        where = f"{path.relative_to(ROOT.parent)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (Import(where, _strip_package(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield Import(where, _strip_package(str(node.module)))
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                full_name = ".".join([*base, alias.name])
                target = full_name if full_name in MODULES else ".".join(base)
                if target:  # `from . import __version__` imports no module
                    yield Import(where, f".{target}")


def _strip_package(name: str) -> str:
    return name.removeprefix("bertsmith") if name.startswith("bertsmith.") else name


def top_package(name: str) -> str:
    return name.split(".")[0]


def violation(name: str, imported: Import) -> str | None:
    """Error message if a module may not import this; None if it may."""
    target = imported.target.removeprefix(".")
    if target == imported.target or top_package(target) == top_package(name):
        return None
    allowed = [*MAY_IMPORT[top_package(name)].split(), *(() if top_package(name) in ("errors", "reading") else FOUNDATIONS)]
    if any(target == prefix or target.startswith(f"{prefix}.") for prefix in allowed):
        return None
    names = ", ".join(MAY_IMPORT[top_package(name)].split()) or "nothing of the package"
    return f"{imported.where} imports {target}; {top_package(name)} may import only: {names}"


@pytest.mark.parametrize("name", MODULES)
def test_imports_follow_the_layers(name):
    assert top_package(name) in MAY_IMPORT, f"add {top_package(name)} to MAY_IMPORT in {Path(__file__).name}"
    found_imports = find_imports(name, MODULES[name].read_text(encoding="utf-8"), MODULES[name])
    violations = [message for imported in found_imports if (message := violation(name, imported))]
    assert not violations, "\n".join(violations)


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
def test_imports_upward_are_reported(name, source, target):
    violations = [violation(name, imported) for imported in find_imports(name, source)]
    assert len(violations) == 1 and f"imports {target}; {top_package(name)} may import only" in str(violations[0])


def test_import_layers_have_no_cycle():
    allowed = {name: {top_package(target) for target in targets.split()} for name, targets in MAY_IMPORT.items()}
    while leaves := [name for name, dependencies in allowed.items() if not dependencies & allowed.keys()]:
        for name in leaves:
            del allowed[name]
    assert not allowed, f"import cycle: {', '.join(allowed)}"


@pytest.mark.parametrize("name", TORCH_FREE_MODULES)
def test_imports_no_torch_in_torch_free_modules(name):
    found_imports = find_imports(name, MODULES[name].read_text(encoding="utf-8"), MODULES[name])
    violations = [
        f"{imported.where} imports {imported.target}"
        for imported in found_imports
        if top_package(imported.target) in ("torch", "safetensors")
    ]
    assert not violations, "\n".join(violations)


def find_task_switches(source: str) -> list[int]:
    """Lines that choose by the class of a task: isinstance, `match`, comparison of types, or a table of classes."""
    lines = set()
    for node in ast.walk(ast.parse(source)):
        compared: list[ast.AST | None] = []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            compared = [node.args[1]]
        elif isinstance(node, ast.MatchClass):
            compared = [node.cls]
        elif isinstance(node, ast.Compare):
            compared = [*node.comparators]
        elif isinstance(node, ast.Dict):
            compared = [*node.keys]
        names = (getattr(part, "id", getattr(part, "attr", "")) for top in compared if top for part in ast.walk(top))
        if TASK_CLASSES & set(names):
            lines.add(getattr(node, "lineno", 0))
    return sorted(lines)


@pytest.mark.parametrize("name", [name for name in MODULES if top_package(name) != "tasks"])
def test_imports_of_tasks_are_asked_not_told_apart(name):
    lines = find_task_switches(MODULES[name].read_text(encoding="utf-8"))
    assert not lines, (
        f"{MODULES[name]}, lines {lines} switch on the class of a task; ask the task (a member of tasks.base.Task)"
    )


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(task, TextClassification)",
        "isinstance(task, tasks.Seq2Seq | MultipleChoice)",
        "if type(task) is TextRegression: pass",
        "match task:\n    case TokenClassification(crf=True): pass",
        "METRICS = {QuestionAnswering: 'f1'}",
    ],
)
def test_imports_check_finds_switches_on_tasks(source):
    assert find_task_switches(source) and not find_task_switches("isinstance(task.pair, BothOrdersPair)")


def loaded_packages(code: str) -> set[str]:
    """Top-level packages in sys.modules of a new interpreter after running the code."""
    code += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split())


HEAVY_PACKAGES = {"torch", "numpy", "rich", "tokenizers", "safetensors"}
HELP_AND_USAGE_ERRORS = [  # status, arguments
    (0, "--help"),
    (0, "--version"),
    *((0, f"{stage} --help") for stage in STAGES),
    (0, "finetune --help all"),
    (0, "pretrain --help train"),
    (0, "finetune task=tag --help"),
    (2, "finetun"),
    (2, "finetune --jsn"),
    (2, "finetune task=tga --help"),
    (2, "finetune"),
    (2, "finetune task=tag task.crff=true"),
    (2, "finetune task=tga model=m data.train=t out=o"),
    (2, "pretrain corpus=c out=o model=bert-mni"),
    (2, "pretrain corpus=c out=o model=gpt model.mixer.headz=3"),
    (2, "pretrain corpus=c out=o train.steps=many"),
    (2, "pretrain corpus=c out=o train.steps=-1"),
    (2, "pretrain corpus=c out=o train.steps.more=1"),
    (2, "pretrain corpus=c"),
    (2, "pretrain absent.toml"),
    (2, "show msks out=a.html"),
]


def test_imports_of_help_and_usage_errors_are_without_torch_and_numpy():
    calls = "; ".join(f"assert main({args.split()}) == {status}" for status, args in HELP_AND_USAGE_ERRORS)
    names = loaded_packages(f"import bertsmith; from bertsmith.cli import main; {calls}")
    assert "bertsmith" in names and not names & HEAVY_PACKAGES


def test_imports_of_torch_free_modules_load_no_torch():
    names = loaded_packages("\n".join(f"import bertsmith.{name}" for name in TORCH_FREE_MODULES if name != "__init__"))
    assert "numpy" in names and "torch" not in names


def find_test_imports(source: str) -> list[str]:
    """The modules of `tests` that a test file imports, with dots for relative imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            is_package = not module.strip(".") or module in ("tests", "tests.support")
            found += [f"{module.rstrip('.')}.{alias.name}" for alias in node.names] if is_package else [module]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.startswith(("tests", "."))]


@pytest.mark.parametrize("source", ["from tests.model.test_rope import a", "from .test_rope import a", "import tests.conftest"])
def test_imports_between_test_files_are_found(source):
    assert not all(name.startswith("tests.support.") for name in find_test_imports(source))


def test_imports_of_tests_are_from_support_only():
    """What test files share is in tests/support, fixtures are in conftest.py; golden.py and attacks are programs with tests."""
    folder = Path(__file__).parent
    assert len(list(folder.rglob("test_*.py"))) > 150
    for path in folder.rglob("*.py"):
        programs = {"test_golden.py": "tests.golden", "attacks": "tests.attacks"}
        shared = ("tests.support.", *(programs[name] for name in (path.name, path.parent.name) if name in programs))
        others = [name for name in find_test_imports(path.read_text(encoding="utf-8")) if not name.startswith(shared)]
        assert not others, f"{path.relative_to(folder)} imports {', '.join(others)}; move what it shares to tests/support"
