"""README.zh.md has the same sections, lists, source tree and links as README.md."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))


def outline(text: str) -> list[str]:
    """Headings, list items and code blocks, in order."""
    return [line[:3].strip() for line in text.splitlines() if re.match(r"#+ |- \*\*|```", line)]


def source_tree(text: str) -> list[str]:
    """File names in the code block of the source tree."""
    block = text.split("```\nsrc/bertsmith/\n")[1].split("```")[0]
    return re.findall(r"^ *([\w./]+)(?:, ([\w.]+))?", block, re.MULTILINE) + sorted(re.findall(r"\w+\.py|\w+/", block))


def test_readme_translations_have_the_same_outline():
    assert outline(CHINESE) == outline(ENGLISH)


def test_readme_translations_show_the_same_source_tree():
    assert source_tree(CHINESE) == source_tree(ENGLISH)


def heading_anchors(text):
    """Anchors of the headings: lower case, hyphens for spaces."""
    return {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ ([\w ]+)$", text, re.MULTILINE)}


def test_readme_links_are_equal_and_valid():
    links = [set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh.md"} for text in (ENGLISH, CHINESE)]
    assert links[0] == links[1]
    for link in links[0]:
        file, _, anchor = link.partition("#")
        assert (ROOT / file).exists()
        assert not anchor or anchor in heading_anchors((ROOT / file).read_text(encoding="utf-8"))
    targets = [set(re.findall(r"`(make [\w-]+)", text)) for text in (ENGLISH, CHINESE)]
    assert targets[0] == targets[1]
