"""Real English that is on every machine already: the documentation inside Python's own files and installed packages."""

import ast
import hashlib
import inspect
import json
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from ..errors import BadInput

LIMIT = 12_000_000  # characters that are enough
LONGEST = 2_000_000  # bytes of a source file; what is longer was written by a program
SKIPPED = {"test", "tests", "testing", "_vendor", "_vendored", "vendor", "vendored", "extern", "_extern", "site-packages"}
WORTHWHILE = 0.15  # share of a file inside triple quotes below which reading it closely costs more than it gives
MANY = 300  # files that are worth a second process
TOPICS = "pydoc_data/topics.py"  # Python's language reference, where there is one, comes first

ROLE = re.compile(r":[a-z:]+:`~?([^`<]*[^`<\s])(?:\s*<[^`]*>)?`")  # :class:`~a.B`, :ref:`words <label>`
MARKUP = re.compile(r"`+([^`\n]+?)(?:\s<[^`]*>)?`+_*|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\n]+)\*(?![\w*])")
LINK = re.compile(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])")  # [words](address), [words][label]
CODE = re.compile(r">>>|://|->|==| = |[{}|\\<>]|\.\. |::|\[\[")
QUOTED = re.compile(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.S)
WORD = re.compile(r"""[("'\[]*[A-Za-z][A-Za-z]*(?:['’-][A-Za-z]+)*[)"'\].,;:!?]*""")
UNDERLINE = re.compile(r"([=\-~^*#\"'.`+_])\1{2,}")


def installed() -> list[Path]:
    """The folders of the standard library and of the packages of this environment."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")))


class Document(NamedTuple):
    """The prose of one source file."""

    package: str  # the folder it is in, of those below the root; `python` for what comes with it
    path: str  # of the file, below the root
    paragraphs: list[str]

    @property
    def text(self) -> str:
        """One paragraph a line."""
        return "\n".join(self.paragraphs) + "\n"


def gather(
    roots: Sequence[Path] = (), limit: int = LIMIT, on_read: Callable[[int, int], None] = lambda done, of: None
) -> list[Document]:
    """Documents until there are `limit` characters of them. `on_read(characters, of)`."""
    documents, characters = [], 0
    for document in gathered(roots or installed()):
        documents.append(document)
        characters += len(document.text)
        on_read(min(characters, limit), limit)
        if characters >= limit:
            break
    if not documents:
        raise BadInput(f"no prose in {', '.join(map(str, roots or installed()))}; give folders of documented Python files")
    return documents


def written(documents: Iterable[Document]) -> bytes:
    """As corpus text is written: a blank line between documents."""
    return "\n".join(document.text for document in documents).encode()


def gathered(roots: Sequence[Path]) -> Iterator[Document]:
    """Each source file's paragraphs of prose, where it has two or more that no file before it had.

    Files are read, never imported: nothing that is gathered runs. The order is that of roots, then of names.
    """
    seen: set[str] = set()
    places = [(root, path) for root in roots for path in sources(root)]
    for (root, path), document in zip(places, _read([path for _, path in places]), strict=True):
        found = dict.fromkeys(paragraph for paragraph in document if paragraph not in seen)
        seen.update(found)
        if len(found) > 1:
            yield Document(package_of(root, path), path.relative_to(root).as_posix(), list(found))


def package_of(root: Path, path: Path) -> str:
    return "python" if root == installed()[0] else path.relative_to(root).parts[0].removesuffix(".py")


def sources(root: Path) -> list[Path]:
    """The Python files below a folder that a person wrote to be used, in order."""
    if not root.is_dir():
        raise BadInput(f"there is no folder {root} to gather text from")
    paths = [path for path in root.rglob("*.py") if not SKIPPED.intersection(path.relative_to(root).parts[:-1])]
    wanted = (path for path in paths if not path.name.startswith("test_") and not path.stem.endswith(("_test", "_pb2")))
    return sorted(wanted, key=lambda path: (not path.as_posix().endswith(TOPICS), path.relative_to(root).as_posix()))


def strings(path: Path) -> list[str]:
    """The docstrings of a file, and its other texts of several lines, in the order they stand in."""
    try:
        source = path.read_text(encoding="utf-8")
        if len(source) > LONGEST or sum(len(m[0]) for m in QUOTED.finditer(source)) < WORTHWHILE * len(source):
            return []
        with warnings.catch_warnings(action="ignore"):  # about other people's escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError, RecursionError):  # templates, old Python, other encodings
        return []
    found = sorted((node.lineno, node.col_offset, str(node.value)) for node in _constants(tree))
    return [text for _, _, text in found]


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring that are sentences; code, tables, headings and lists of parameters are left out."""
    for block in _blocks(inspect.cleandoc(text)):
        plain = MARKUP.sub(lambda m: m[1] or m[2] or m[3], LINK.sub(r"\1", ROLE.sub(r"\1", block)))
        plain = " ".join(plain.split()).replace("--", "-")
        if is_prose(plain):
            yield plain


def is_prose(text: str) -> bool:
    """Whole sentences of words, not signatures, tables or formulas."""
    words = text.split()
    if len(words) < 6 or not text[0].isupper() or not text.rstrip("\"')”").endswith((".", "!", "?")) or CODE.search(text):
        return False
    return text.isascii() and sum(bool(WORD.fullmatch(word)) for word in words) >= 0.85 * len(words)


def _read(paths: list[Path]) -> Iterator[list[str]]:
    """The paragraphs of each file, in order, by as many processes as there are cores."""
    if len(paths) < MANY or (os.cpu_count() or 1) < 2:
        yield from map(_document, paths)
        return
    with multiprocessing.get_context("spawn").Pool() as pool:
        yield from pool.imap(_document, paths, chunksize=32)


def _document(path: Path) -> list[str]:
    return [paragraph for text in strings(path) for paragraph in paragraphs(text)]


def _blocks(text: str) -> Iterator[str]:
    """Runs of lines of one indentation between blank lines; what stands under a line that ends with :: is code."""
    lines: list[str] = []
    indent, code_beyond = 0, -1
    for line in [*text.split("\n"), ""]:
        bare = line.strip()
        here = len(line) - len(line.lstrip()) if bare else indent
        if bare and here <= code_beyond:
            code_beyond = -1
        if lines and (not bare or here != indent or UNDERLINE.fullmatch(bare)):
            if not UNDERLINE.fullmatch(bare):
                yield "\n".join(lines)
            lines = []
        if not bare or code_beyond >= 0 or UNDERLINE.fullmatch(bare):
            continue
        lines, indent = [*lines, bare], here
        if bare.endswith("::") or bare.startswith(".. "):
            code_beyond = here


def _constants(tree: ast.AST) -> Iterator[ast.Constant]:
    """Texts that stand alone, as docstrings do, and texts of several lines; parts of f-strings are neither."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("\n") > 1:
            yield node
        elif not isinstance(node, ast.JoinedStr):
            waiting.extend(ast.iter_child_nodes(node))


LABELS = 6  # packages at most, those with most text
LEARN, JUDGE = 60, 100  # paragraphs of each to learn from, few as labels are, and to be judged on, if there are as many
FEWEST = 30  # of either, or the package is not among them
WORDS = 12  # of a paragraph that may say where it is from
HELD_OUT = 5  # every fifth file is one to be judged on


@dataclass(frozen=True)
class Task:
    """Rows of text and label, as many of each label; what is judged is from files that nothing is learnt from."""

    labels: list[str]
    learn: list[dict[str, str]]
    judge: list[dict[str, str]]
    held_out: set[tuple[str, str]]  # package and path of the files that `judge` is from


def task_of(documents: Sequence[Document]) -> Task | None:
    """The packages with most text, told apart; None if there are no two with enough. The same files give the same task."""
    found = {name: _split(some) for name, some in _by_package(documents).items()}
    enough = [name for name, (learn, judge) in found.items() if min(len(learn), len(judge)) >= FEWEST]
    labels = sorted(sorted(enough, key=lambda name: (-len(found[name][0]), name))[:LABELS])
    if len(labels) < 2:
        return None
    learn, judge = ([found[name][side] for name in labels] for side in (0, 1))
    held_out = {(one.package, one.path) for one in documents if one.package in labels and _is_held_out(one)}
    return Task(labels, _rows(labels, learn, LEARN), _rows(labels, judge, JUDGE), held_out)


def lines(rows: Iterable[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _by_package(documents: Iterable[Document]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        found[document.package].append(document)
    return found


def _split(documents: Iterable[Document]) -> tuple[list[str], list[str]]:
    """Paragraphs to learn from and to be judged on; the first of each file come first, so that no file is most of them."""
    sides: tuple[list[list[str]], list[list[str]]] = [], []
    for document in sorted(documents, key=lambda one: _draw(one.path)):
        long = [paragraph for paragraph in document.paragraphs if len(paragraph.split()) >= WORDS]
        sides[_is_held_out(document)].append(sorted(long, key=_draw))
    learn, judge = ([text for text in chain.from_iterable(zip_longest(*side)) if text] for side in sides)
    return learn, judge


def _rows(labels: list[str], texts: list[list[str]], most: int) -> list[dict[str, str]]:
    """As many of each label, in an order that has nothing to do with it."""
    size = min(most, *map(len, texts))
    rows = [{"text": text, "label": label} for label, some in zip(labels, texts, strict=True) for text in some[:size]]
    return sorted(rows, key=lambda row: _draw(row["text"]))


def _is_held_out(document: Document) -> bool:
    return _draw(f"{document.package}: {document.path}")[0] % HELD_OUT == 0


def _draw(text: str) -> bytes:
    """A throw of dice that falls alike for the same text, everywhere."""
    return hashlib.sha256(text.encode()).digest()
