"""The pages of docs/: reference pages are up to date, links lead somewhere, commands have keys and benchmarks that exist."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.options import BENCHMARKS
from bertsmith.codegen import FUNCTIONS
from bertsmith.commands import POSITIONAL, STAGES
from bertsmith.config import iter_keys
from bertsmith.reference import generate_pages
from bertsmith.reference.markdown import escape, escape_cell, heading_anchor
from bertsmith.reference.python import _format_docstring
from bertsmith.schema import SCHEMA_FILE, load_stage_schema

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*.md")]
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
PAGES_WITH_COMMANDS = [ROOT / "docs" / name for name in ("results.md", "history.md", "configuration.md")]


def test_reference_pages_are_up_to_date():
    for path, text in generate_pages(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")), FUNCTIONS).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is stale: run `make schema`"


def test_configuration_reference_has_every_key():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    for stage in STAGES:
        keys = {re.sub(r"\[[^]]*\]", "", key.name) for key in iter_keys(load_stage_schema(stage))}
        shared = {key for key in rows if "." in key}
        missing = {key for key in keys if key not in rows and not any(_is_same_table(key, row) for row in shared)}
        assert not missing, f"{stage}: {sorted(missing)}"


def _is_same_table(key: str, row: str) -> bool:
    """Whether two keys end alike: a table is documented once, under the first key that takes it."""
    return key.rpartition(".")[2] == row.rpartition(".")[2]


def without_code_blocks(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def page_anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_code_blocks(path.read_text(encoding="utf-8")), re.MULTILINE)
    anchors = [heading_anchor(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings]
    assert len(set(anchors)) == len(anchors), f"{path.name} has two headings with the same anchor"
    return set(anchors)


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_links_lead_to_files_and_headings(page: Path):
    text = without_code_blocks(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in page_anchors(target), f"{page.name}: {link}"


def test_tables_have_equal_numbers_of_cells():
    for page in PAGES:
        for block in re.findall(r"(?:^ *\|.*\|\n)+", without_code_blocks(page.read_text(encoding="utf-8")), re.MULTILINE):
            counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(counts) == 1, f"{page.name}: {block[:100]}"


def find_commands(text: str, start: str) -> Iterator[list[str]]:
    """The words of every command in code blocks and code spans that begins so."""
    text = re.sub(r"\\\n\s*", " ", text)
    spans = re.findall(r"`([^`]+)`", without_code_blocks(text).replace("\\|", "|"))
    blocks = [line for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    for command in (" ".join(found.split()) for found in [*spans, *blocks]):
        if command.startswith(start):
            yield shlex.split(command.partition(" # ")[0].removeprefix(start))


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_have_known_stages_and_keys(page: Path):
    for stage, *arguments in find_commands(page.read_text(encoding="utf-8"), "bertsmith "):
        if stage == "STAGE":
            continue
        keys = {re.sub(r"\[[^]]*\]", "", key.name) for key in iter_keys(load_stage_schema(stage))}
        tables = {key.rpartition(".")[0] for key in keys}
        for argument in arguments:
            key, equals, _ = argument.strip("[]").partition("=")
            if equals:
                root = key.partition(".")[0]
                is_free = root in keys and root in ("members", "every", "models", "tasks", "frozen", "tuned", "prepare")
                assert key in keys | tables or is_free, f"{stage}: {key}"
            else:
                assert argument.endswith(".toml") or argument == "..." or stage in POSITIONAL or argument.startswith("--")
                if argument.startswith("recipes/"):
                    assert (ROOT / argument).exists(), argument


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS[:2], ids=lambda page: page.name)
def test_benchmarks_exist(page: Path):
    for name, *_ in find_commands(page.read_text(encoding="utf-8"), "python -m benchmarks "):
        assert "=" in name or set(name.split("|")) <= {*BENCHMARKS}


def test_docstrings_become_markdown():
    docstring = """Add two numbers.

    A text | with a bar.

    Example:
        >>> add(1,
        ...     2)

    Args:
        first: a number,
            of any size
        second: another
    """
    assert _format_docstring(re.sub(r"\n    ", "\n", docstring).strip()) == [
        "Add two numbers.", "", "A text | with a bar.", "", "```python", "add(1,", "    2)", "```", "",
        "- `first`: a number, of any size", "- `second`: another",
    ]  # fmt: skip
    assert _format_docstring("Text.\n\n>>> a()\n>>> b()") == ["Text.", "", "```python", "a()", "b()", "```"]
    assert _format_docstring("Text.\n>>> a()") == ["Text.", "", "```python", "a()", "```"]


def test_cells_escape_what_ends_them():
    assert escape_cell("a | b * `c|d*` <e>") == "a \\| b \\* `c\\|d*` &lt;e>"
    assert escape("a | b") == "a | b"
    assert heading_anchor("`model.mixer=transformer-xl`") == "modelmixertransformer-xl"
