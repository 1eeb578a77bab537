"""The pages of the documentation as code blocks, commands, links and headings."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = ("results.md", "history.md", "configuration.md")  # records of measurements, and generated pages
SHELL = ("", "sh", "shell", "bash", "console")
READING_ORDER = ("README.md", "docs/tour.md", "docs/guides", "docs/ancestors.md", "docs/relatives.md")  # then the others


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it shows, and why it is not run, if it is not."""

    page: Path
    line: int
    language: str
    file: str
    text: str
    not_run: str

    @property
    def location(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """The commands of a shell block as argument lists; `\\` joins lines, comments are dropped."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if arguments := shlex.split(line.removeprefix("$ "), comments=True):
                yield arguments


def find_pages() -> list[Path]:
    """Every page, in reading order."""
    pages = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").rglob("*.md"))]

    def rank(page: Path) -> int:
        name = page.relative_to(ROOT).as_posix()
        return next((i for i, start in enumerate(READING_ORDER) if name.startswith(start)), len(READING_ORDER))

    return sorted(pages, key=rank)


def find_run_pages() -> list[Path]:
    return [page for page in find_pages() if page.name not in NOT_RUN]


@cache
def read_page(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def find_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page. `<!-- not run: reason -->` right above a fence excludes its block."""
    blocks, lines = [], read_page(page).splitlines()
    start, reason = None, ""
    for number, line in enumerate(lines):
        if line.startswith("```"):
            if start is None:
                start = number
                continue
            language, _, file = lines[start][3:].strip().partition(" ")
            text = "\n".join(lines[start + 1 : number]) + "\n"
            blocks.append(Block(page, start + 1, language, file.strip(), text, reason))
            start, reason = None, ""
        elif start is None and line.strip():
            comment = re.fullmatch(r"<!-- not run: (.+) -->", line.strip())
            reason = comment[1] if comment else ""
    assert start is None, f"{page}: a code block is not closed"
    return blocks


def find_commands(page: Path) -> list[tuple[Block, list[str]]]:
    """The commands of the shell blocks of a page, and those in inline code that start with `bertsmith STAGE`."""
    return [(block, arguments) for block in find_blocks(page) if block.language in SHELL for arguments in block.commands()]


def prose(page: Path) -> str:
    """The text of a page outside fenced blocks and comments."""
    text = re.sub(r"^```.*?^```$", "", read_page(page), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def inline_code(page: Path) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def find_links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def heading_anchors(page: Path) -> set[str]:
    """Anchors of the headings as GitHub makes them: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
