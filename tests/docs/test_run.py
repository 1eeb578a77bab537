"""Every documented command runs, page after page in one folder, as a reader would run them; trainings are cut to two steps.

The folder has the files that the pages name (`sample_data.py`). `mini-en` and `mini-zh` are tiny stand-ins there: a folder
in the working directory takes precedence over a shipped model. One test per page; a page may read what earlier pages made.
"""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bertsmith
from bertsmith import cli
from tests.support.doc_pages import ROOT, SHELL, Block, find_blocks, find_run_pages
from tests.support.sample_data import write_hugging_face_folder, write_sample_data

pytestmark = [pytest.mark.docs]

OWN_FOLDER = ("README.zh.md", "extending.md")  # a translation repeats names; extending changes the package's source
DURATION = re.compile(r"train\.(steps|epochs|minutes|batch_tokens|early_stopping_patience|save_every|eval_every|warmup_steps)=")
WORD_VECTORS = ("objective=skip-gram", "objective=cbow", "objective=glove")
SHORT = {"steps": 2, "batch_tokens": 256}
SMALL = {  # sizes for presets that take long even for two steps
    "gpt": {"hidden_size": 48, "num_hidden_layers": 2, "feedforward.intermediate_size": 192},
    "elmo": {"mixer.cell_size": 512},
    "elmo-transformer": {"hidden_size": 64, "num_hidden_layers": 2, "feedforward.intermediate_size": 128},
    "transformer-xl": {"hidden_size": 40, "num_hidden_layers": 2, "feedforward.intermediate_size": 80},
    "adaptive-span": {"hidden_size": 64, "num_hidden_layers": 2, "feedforward.intermediate_size": 128},
    "albert-base": {"hidden_size": 48, "num_hidden_layers": 2, "feedforward.intermediate_size": 96},
    "bert-small": {"hidden_size": 64, "feedforward.intermediate_size": 96},
}
TINY_MODEL = {
    "num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 512,  # what int8 needs
    "mixer": {"kind": "attention", "num_attention_heads": 2}, "feedforward": {"intermediate_size": 64},
}  # fmt: skip


PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in find_run_pages() if page.name not in OWN_FOLDER]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who works through the English pages."""
    return make_folder(tmp_path_factory.mktemp("docs"))


def make_folder(folder: Path) -> Path:
    write_sample_data(folder)
    write_hugging_face_folder(folder / "bert-base-uncased")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    for name in ("race", "characters"):
        shorten_race(folder / f"recipes/{name}.toml")
    with contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
        make_tiny_model(Path("mini-en"), "books/*.txt.gz", language="en")
        make_tiny_model(Path("mini-zh"), "chinese/*.txt", language="zh")
    return folder


def make_tiny_model(out: Path, texts: str, language: str) -> None:
    """A pre-trained model in place of a shipped one."""
    parts = Path("stand-ins") / out.name
    bertsmith.train_tokenizer(texts=texts, vocab_size=600, out=parts / "tokenizer", quiet=True)
    bertsmith.prepare(texts=texts, tokenizer=parts / "tokenizer", language=language, out=parts / "corpus", quiet=True)
    bertsmith.pretrain(corpus=parts / "corpus", model=TINY_MODEL, train=SHORT, out=out, quiet=True)


def shorten_race(path: Path) -> None:
    """Keep two members and one task of a recipe, and a budget of a few steps."""
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    recipe["members"] = dict(list(recipe["members"].items())[:2])
    recipe["tasks"] = dict(list(recipe.get("tasks", {}).items())[:1])
    recipe["budget"] = {"flops": 1e9}
    recipe["seeds"] = [0]
    path.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in recipe.items() if value), encoding="utf-8")


def to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {to_toml(item)}' for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("page", PAGES)
def test_documented_commands_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    run_page(page, folder, monkeypatch)


def test_commands_of_the_chinese_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run_page(ROOT / "README.zh.md", make_folder(tmp_path), monkeypatch)


def test_extensions_of_the_docs_run(folder: Path, tmp_path: Path):
    """The new files and the two lines of extending.md, in a copy of the package, the commands that use them, and the contract
    of mixers."""
    source = tmp_path / "src/bertsmith"
    shutil.copytree(ROOT / "src/bertsmith", source, ignore=shutil.ignore_patterns("__pycache__", "pretrained"))
    (tmp_path / "docs").mkdir()  # for generated pages
    (source / "pretrained").symlink_to(ROOT / "src/bertsmith/pretrained")
    for block in find_blocks(ROOT / "docs/extending.md"):
        if block.file.endswith("__init__.py"):
            extend_union(tmp_path / block.file, block)
        elif block.file:
            assert not (tmp_path / block.file).exists(), block.location
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        elif block.language in SHELL:
            run_with_package(list(block.commands()), tmp_path / "src", folder)
    hold_to_contract("Mean", tmp_path)


def hold_to_contract(mixer: str, root: Path) -> None:
    """Add a mixer with its defaults to `MIXERS` in a copy of the tests, as extending.md says, and run its tests."""
    shutil.copytree(ROOT / "tests", root / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    path = root / "tests/contracts/test_mixers.py"
    text, added = re.subn(r"^MIXERS = \[$", f"MIXERS = [\n    {mixer}(),", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert added == 1
    path.write_text(text.replace("mixers import (\n", f"mixers import (\n    {mixer},\n", 1), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(path), "-k", f"{mixer.lower()} or covers", "-p", "no:cacheprovider"],
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}, cwd=root, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(done.stdout[-3000:], pytrace=False)


def extend_union(path: Path, block: Block) -> None:
    """Add the import of a block, and its member to a union: `MixerConfig = ... | Mean`."""
    text = path.read_text(encoding="utf-8")
    (line,) = re.findall(r"^from .+$", block.text, re.MULTILINE)
    ((union, member),) = re.findall(r"^(\w+) = \.\.\. \| (\w+)$", block.text, re.MULTILINE)
    assert re.search(rf"^{union} = ", text, re.MULTILINE), f"{path} has no {union}"
    path.write_text(f"{text}\n{line}\n\n{union} = {union} | {member}\n", encoding="utf-8")


def run_with_package(commands: list[list[str]], source: Path, folder: Path) -> None:
    """Run commands in a process that imports another copy of the package."""
    script = (
        "import json, sys; from bertsmith import cli, codegen\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    if (codegen.write_files() if arguments[0] == 'make' else cli.main(arguments[1:])): sys.exit(' '.join(arguments))\n"
    )
    short = [[name, *(shorten_command(rest) if name == "bertsmith" else rest)] for name, *rest in commands]
    with contextlib.chdir(folder):
        done = subprocess.run(
            [sys.executable, "-c", script, json.dumps(short)],
            env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        pytest.fail(done.stderr[-3000:], pytrace=False)


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a page in order; every failure is reported, with its messages."""
    monkeypatch.chdir(folder)
    for name in ("pretrain", "finetune", "distill", "prune", "share"):
        monkeypatch.setattr(bertsmith, name, shorten_call(getattr(bertsmith, name)))
    failures, names = [], {"__name__": "__docs__"}
    for block in find_blocks(page):
        failures += run_block(block, names)
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


def run_block(block: Block, names: dict[str, Any]) -> Iterator[str]:
    """The failures of a block."""
    if block.not_run:
        return
    if block.file:
        yield from check_file(block)
    elif block.language == "python":
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as messages:
            try:
                exec(compile(block.text, block.location, "exec"), names)
                failure = ""
            except Exception:
                failure = traceback.format_exc(limit=-2)
        if failure:
            yield f"{block.location}\n{messages.getvalue()}{failure}"
    elif block.language in SHELL:
        for text, arguments in block.piped_commands():
            if arguments[0] == "bertsmith" and arguments[-1] != "&" and (failure := run_command(arguments[1:], text)):
                yield f"{block.location}: {' '.join(arguments)}\n{failure}"


def run_command(arguments: list[str], stdin: str = "") -> str:
    """The messages of a command that failed; empty if it did not."""
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as messages,
    ):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        try:
            status = cli.main(shorten_command(arguments))
        except Exception:
            return messages.getvalue() + traceback.format_exc()
    accepted = (0, 1) if arguments[0] == "doctor" else (0,)  # two steps of training do have problems
    return "" if status in accepted else f"exit status {status}: {messages.getvalue()[-2000:]}"


def check_file(block: Block) -> Iterator[str]:
    """A block that shows a file is written there; a data file has to begin like this instead."""
    path = Path(block.file)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    elif not path.read_text(encoding="utf-8").startswith(block.text):
        yield f"{block.location}: {path} does not begin with these lines"


def shorten_command(arguments: list[str]) -> list[str]:
    """The command with a training of two small steps, and a short measurement in `plan`."""
    stage = arguments[0]
    if stage == "plan" and "machine=h200" not in arguments:
        return [*arguments, "seconds=0.2"]
    learns = stage in ("distill", "prune", "share") and any(re.match("data.train=|corpus=", word) for word in arguments)
    if stage not in ("pretrain", "finetune") and not learns:
        return arguments
    kept = [argument for argument in arguments if not DURATION.match(argument)]
    if any(argument.startswith(WORD_VECTORS) for argument in kept):
        return [*kept, "train.epochs=1"]
    short = [f"train.steps={SHORT['steps']}"]
    recipe = next((Path(argument).read_text(encoding="utf-8") for argument in kept if argument.endswith(".toml")), "")
    if recipe:
        short += [f"train.{name}=none" for name in ("epochs", "minutes")]
        short += ["train.compile=false", "train.precision=fp32", "train.gradient_accumulation_steps=1", "train.warmup_steps=1"]
    for preset, sizes in SMALL.items():
        if f"model={preset}" in kept and stage == "pretrain":
            short += [f"model.{key}={size}" for key, size in sizes.items()]
    lengths = re.findall(r"^max_length ?= ?(\d+)", "\n".join([*recipe.splitlines(), *kept]), re.MULTILINE)
    return [*kept, *short, f"train.batch_tokens={max([SHORT['batch_tokens'], *map(int, lengths)])}"]


def shorten_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """A stage that trains, with a training of two small steps."""

    def call(*, train: dict[str, Any] | None = None, **values: Any) -> Any:
        durations = ("steps", "epochs", "minutes", "warmup_steps", "early_stopping_patience")
        kept = {key: value for key, value in (train or {}).items() if key not in durations}
        return function(train={**kept, **SHORT}, **values)

    return call
