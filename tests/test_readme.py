"""README.zh.md is the twin of README.md: the same sections, promises, files and links, in Chinese."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))


def shape(text: str) -> list[str]:
    """Headings, points and blocks of code, in order."""
    return [line[:3].strip() for line in text.splitlines() if re.match(r"#+ |- \*\*|```", line)]


def tree(text: str) -> list[str]:
    """The names in the block that begins with the package's folder."""
    block = text.split("```\nsrc/bertsmith/\n")[1].split("```")[0]
    return re.findall(r"^ *([\w./]+)(?:, ([\w.]+))?", block, re.MULTILINE) + sorted(re.findall(r"\w+\.py|\w+/", block))


def test_both_have_the_same_sections_points_and_code():
    assert shape(CHINESE) == shape(ENGLISH)


def test_both_show_the_same_tree():
    assert tree(CHINESE) == tree(ENGLISH)


def headings(text):
    """As they are linked to: in small letters, with hyphens for spaces."""
    return {found.lower().replace(" ", "-") for found in re.findall(r"^#+ ([\w ]+)$", text, re.MULTILINE)}


def test_both_name_the_same_places_and_they_are_there():
    links = [set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh.md"} for text in (ENGLISH, CHINESE)]
    assert links[0] == links[1]
    for link in links[0]:
        file, _, part = link.partition("#")
        assert (ROOT / file).exists()
        assert not part or part in headings((ROOT / file).read_text(encoding="utf-8"))
    targets = [set(re.findall(r"`(make [\w-]+)", text)) for text in (ENGLISH, CHINESE)]
    assert targets[0] == targets[1]
