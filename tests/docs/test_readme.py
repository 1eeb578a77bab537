"""README.zh.md mirrors README.md: the same outline, links, tree and commands; and what both say of files is true."""

import re
from pathlib import Path

from tests.support.doc_pages import ROOT, find_blocks, find_commands, find_links, read_page

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
MAX_LINES = 160


def outline(page: Path) -> list[str]:
    """Headings, list items and code blocks, in order."""
    return [line[:3].strip() for line in read_page(page).splitlines() if re.match(r"#+ |- |```", line)]


def source_tree(page: Path) -> list[str]:
    """File and folder names in the code block of the source tree."""
    tree = next(block.text for block in find_blocks(page) if block.text.startswith("src/bertsmith/\n"))
    return re.findall(r"\w+\.py|\w+/", tree.removeprefix("src/bertsmith/\n"))


def test_readme_translations_have_the_same_outline():
    assert outline(CHINESE) == outline(ENGLISH)


def test_readme_is_short():
    assert max(len(read_page(page).splitlines()) for page in (ENGLISH, CHINESE)) <= MAX_LINES


def test_readme_translations_show_the_same_source_tree():
    assert source_tree(CHINESE) == source_tree(ENGLISH)


def test_source_tree_of_readme_names_every_package():
    packages = {f"{path.parent.name}/" for path in (ROOT / "src/bertsmith").glob("*/__init__.py")}
    folders = {"recipes/", "benchmarks/", "tests/", "docs/"}
    assert {name for name in source_tree(ENGLISH) if name.endswith("/")} == packages | folders


def test_readme_translations_have_the_same_links_and_targets():
    links = [set(find_links(page)) - {"README.md", "README.zh.md"} for page in (ENGLISH, CHINESE)]
    assert links[0] == links[1]
    targets = [set(re.findall(r"`(make [\w-]+)", read_page(page))) for page in (ENGLISH, CHINESE)]
    assert targets[0] == targets[1]


def test_readme_translations_run_the_same_stages():
    stages = [
        [[word.replace("mini-zh", "mini-en") for word in arguments[:2]] for _, arguments in find_commands(page)]
        for page in (ENGLISH, CHINESE)
    ]
    assert stages[0] == stages[1]


def test_source_tree_of_the_tour_is_that_of_the_package():
    """Every module and folder that the tour's tree names exists, and it names every package."""
    tree = next(block.text for block in find_blocks(ROOT / "docs/tour.md") if block.text.startswith("src/bertsmith/\n"))
    names = set(re.findall(r"[a-z_0-9]+(?=\.py|/)", tree)) | {"src"}
    package = ROOT / "src/bertsmith"
    modules = {path.stem for path in package.rglob("*.py")}
    packages = {path.parent.name for path in package.rglob("__init__.py")}
    assert names <= modules | packages | {"src", "recipes", "benchmarks", "tests", "docs", "contracts", "parity", "journeys"}
    assert packages - {"bertsmith"} <= names
