"""Documented commands, keys, files and links exist; nothing is run (`test_run.py` does)."""

import re
import tomllib
from pathlib import Path

import pytest

from bertsmith import cli
from bertsmith.commands import POSITIONAL, STAGES
from bertsmith.config import from_user, iter_keys
from bertsmith.errors import UserError
from bertsmith.recipes import read_values
from bertsmith.schema import load_stage_schema
from tests.support.doc_pages import (
    ROOT,
    SHELL,
    find_blocks,
    find_commands,
    find_links,
    find_pages,
    find_run_pages,
    heading_anchors,
    inline_code,
    read_page,
)

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in find_run_pages()]
LANGUAGES = (*SHELL, "python", "toml", "text", "json", "jsonl", "tsv", "csv", "diff", "mermaid")


@pytest.mark.parametrize("page", PAGES)
def test_documented_commands_parse(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for block in find_blocks(page):
        assert block.language in LANGUAGES, f"{block.location}: ```{block.language}"
        if block.language == "toml" and block.file.endswith(".toml"):  # a recipe that the page shows
            Path(block.file).write_text(block.text, encoding="utf-8")
    problems = [
        f"{block.location}: {' '.join(arguments)}\n    {problem}"
        for block, arguments in find_commands(page)
        if not adds_kind(page, arguments) and (problem := find_problem(arguments))
    ]
    assert not problems, "\n".join(problems)


def adds_kind(page: Path, arguments: list[str]) -> bool:
    """Whether a command uses a kind that its page adds to the package."""
    new = {
        tag
        for block in find_blocks(page)
        for tag in re.findall(r'tag="([\w-]+)"|class (\w+)\((?:Variant|BaseMixerConfig)', block.text)
    }
    kinds = {name.lower() for pair in new for name in pair if name}
    return any(argument.partition("=")[2] in kinds for argument in arguments)


def find_problem(arguments: list[str]) -> str:
    """Why a command cannot run; empty if it can."""
    program, *rest = arguments
    if program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return f"there is no make target {set(rest) - targets}" * bool(set(rest) - targets)
    if program == "pip":
        return find_pip_problem(rest)
    if arguments[:3] == ["python", "-m", "benchmarks"]:
        names = {name for name in rest[2:] if "=" not in name}
        missing = {name for name in names if not (ROOT / f"benchmarks/{name}.py").exists()}
        return f"there is no benchmark {missing}" * bool(missing)
    if program in ("git", "cd", "curl"):  # curl: test_curl.py
        return ""
    if rest[-1:] == ["&"]:
        rest = rest[:-1]
    if program != "bertsmith":
        return "not a command that these tests know; mark blocks of another language, as ```text"
    return find_stage_problem(rest)


def find_pip_problem(arguments: list[str]) -> str:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    names = {name for group in re.findall(r"\[([\w,]+)\]", " ".join(arguments)) for name in group.split(",")}
    return f"there is no extra {names - extras}" * bool(names - extras)


def find_stage_problem(arguments: list[str]) -> str:
    """Keys and values against the schema, without running the stage."""
    if not arguments or "--help" in arguments:
        return "" if not arguments or arguments[0] in (*STAGES, "--help") else f"there is no stage {arguments[0]}"
    stage, *rest = arguments
    if stage not in STAGES:
        return f"there is no stage {stage}"
    try:
        schema = load_stage_schema(stage)
        parsed = cli._parse_arguments(rest, schema.__struct_fields__, POSITIONAL.get(stage, ()))
        from_user(schema, *read_values(schema, parsed.recipe, parsed.overrides))
    except UserError as error:
        return str(error)
    return ""


def key_names() -> set[str]:
    """Every dotted key of every stage, with its endings: `train.steps` and `steps`."""
    names = set()
    for stage in STAGES:
        for key in iter_keys(load_stage_schema(stage)):
            parts = re.sub(r"\[[\w-]+\]", "", key.name).split(".")
            names |= {".".join(parts[start:]) for start in range(len(parts))}
    return names


@pytest.mark.parametrize("page", PAGES)
def test_keys_in_prose_exist(page: Path):
    if page.name == "glossary.md":
        pytest.skip("it has the keys of other libraries, too")
    names = key_names() | {"quiet", "trust_remote_code"}  # arguments of the Python functions, and of transformers
    codes = [code for code in inline_code(page) if not code.startswith("python -m ")]  # programs with options of their own
    keys = [key[1] for code in codes for key in re.finditer(r"(?:^| )([a-z_][a-z_.0-9]*)=", code)]
    unknown = sorted({key for key in keys if key not in names and not key.startswith(("columns.", "data.columns."))})
    assert not unknown, f"{page.name}: no stage has {unknown}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_prose_name_stages(page: Path):
    for code in inline_code(page):
        if code.startswith("bertsmith "):
            stage = code.split()[1]
            assert stage in (*STAGES, "STAGE"), f"{page.name}: `{code}`"


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_and_recipes_in_prose_exist(page: Path):
    text = read_page(page)
    for target in re.findall(r"`make ([\w-]+)", text):
        assert not find_problem(["make", target]), f"{page.name}: make {target}"
    for extras in re.findall(r"bertsmith(\[[\w,]+\])", text):
        assert not find_pip_problem([extras]), f"{page.name}: {extras}"
    for recipe in re.findall(r"recipes/[\w-]+\.toml", text):
        assert (ROOT / recipe).exists(), f"{page.name}: {recipe}"


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in find_pages()])
def test_links_and_anchors_resolve(page: Path):
    for link in find_links(page):
        file, _, anchor = link.partition("#")
        if re.match(r"https?://", link):
            continue
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in heading_anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_wrapped(page: Path):
    lines = [
        f"{page.name}:{number}"
        for number, line in enumerate(read_page(page).splitlines(), 1)
        if sum(1 + (ord(character) > 0x2E80) for character in line) > 128 and not line.startswith(("|", "![", "["))
    ]
    assert not lines


def test_every_page_is_in_the_index():
    linked = {(ROOT / "docs" / link.partition("#")[0]).resolve() for link in find_links(ROOT / "docs/README.md")}
    missing = {page for page in (ROOT / "docs").rglob("*.md")} - linked - {ROOT / "docs/README.md"}
    assert not missing, f"docs/README.md does not list {sorted(missing)}"
