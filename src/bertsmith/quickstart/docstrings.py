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

from ..errors import UserError

MAX_CHARACTERS = 12_000_000  # characters that are enough
MAX_FILE_SIZE = 2_000_000  # bytes of a source file; what is longer was written by a program
SKIPPED_FOLDERS = {
    "test",
    "tests",
    "testing",
    "_vendor",
    "_vendored",
    "vendor",
    "vendored",
    "extern",
    "_extern",
    "site-packages",
}
MIN_QUOTED_FRACTION = 0.15  # share of a file inside triple quotes below which reading it closely costs more than it gives
MIN_PARALLEL_FILES = 300  # files that are worth a second process
TOPICS_FILE = "pydoc_data/topics.py"  # Python's language reference, where there is one, comes first

ROLE = re.compile(r":[a-z:]+:`~?([^`<]*[^`<\s])(?:\s*<[^`]*>)?`")  # :class:`~a.B`, :ref:`words <label>`
MARKUP = re.compile(r"`+([^`\n]+?)(?:\s<[^`]*>)?`+_*|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\n]+)\*(?![\w*])")
LINK = re.compile(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])")  # [words](address), [words][label]
CODE = re.compile(r">>>|://|->|==| = |[{}|\\<>]|\.\. |::|\[\[")
QUOTED = re.compile(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.S)
WORD = re.compile(r"""[("'\[]*[A-Za-z][A-Za-z]*(?:['’-][A-Za-z]+)*[)"'\].,;:!?]*""")
UNDERLINE = re.compile(r"([=\-~^*#\"'.`+_])\1{2,}")


def library_folders() -> list[Path]:
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


def collect_documents(
    roots: Sequence[Path] = (),
    max_characters: int = MAX_CHARACTERS,
    on_read: Callable[[int, int], None] = lambda done, of: None,
) -> list[Document]:
    """Documents until there are `limit` characters of them. `on_read(characters, of)`."""
    documents, characters = [], 0
    for document in iter_documents(roots or library_folders()):
        documents.append(document)
        characters += len(document.text)
        on_read(min(characters, max_characters), max_characters)
        if characters >= max_characters:
            break
    if not documents:
        raise UserError(
            f"no prose in {', '.join(map(str, roots or library_folders()))}; give folders of documented Python files"
        )
    return documents


def to_corpus_text(documents: Iterable[Document]) -> bytes:
    """As corpus text is written: a blank line between documents."""
    return "\n".join(document.text for document in documents).encode()


def iter_documents(roots: Sequence[Path]) -> Iterator[Document]:
    """Each source file's paragraphs of prose, where it has two or more that no file before it had.

    Files are read, never imported: nothing that is gathered runs. The order is that of roots, then of names.
    """
    seen: set[str] = set()
    places = [(root, path) for root in roots for path in list_source_files(root)]
    for (root, path), document in zip(places, _read_paragraphs([path for _, path in places]), strict=True):
        found = dict.fromkeys(paragraph for paragraph in document if paragraph not in seen)
        seen.update(found)
        if len(found) > 1:
            yield Document(package_name(root, path), path.relative_to(root).as_posix(), list(found))


def package_name(root: Path, path: Path) -> str:
    return "python" if root == library_folders()[0] else path.relative_to(root).parts[0].removesuffix(".py")


def list_source_files(root: Path) -> list[Path]:
    """The Python files below a folder that a person wrote to be used, in order."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root} to gather text from")
    paths = [path for path in root.rglob("*.py") if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts[:-1])]
    wanted = (path for path in paths if not path.name.startswith("test_") and not path.stem.endswith(("_test", "_pb2")))
    return sorted(wanted, key=lambda path: (not path.as_posix().endswith(TOPICS_FILE), path.relative_to(root).as_posix()))


def read_strings(path: Path) -> list[str]:
    """The docstrings of a file, and its other texts of several lines, in the order they stand in."""
    try:
        source = path.read_text(encoding="utf-8")
        if len(source) > MAX_FILE_SIZE or sum(len(m[0]) for m in QUOTED.finditer(source)) < MIN_QUOTED_FRACTION * len(source):
            return []
        with warnings.catch_warnings(action="ignore"):  # about other people's escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError, RecursionError):  # templates, old Python, other encodings
        return []
    found = sorted((node.lineno, node.col_offset, str(node.value)) for node in _string_constants(tree))
    return [text for _, _, text in found]


def extract_paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring that are sentences; code, tables, headings and lists of parameters are left out."""
    for block in _split_blocks(inspect.cleandoc(text)):
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


def _read_paragraphs(paths: list[Path]) -> Iterator[list[str]]:
    """The paragraphs of each file, in order, by as many processes as there are cores."""
    if len(paths) < MIN_PARALLEL_FILES or (os.cpu_count() or 1) < 2:
        yield from map(_file_paragraphs, paths)
        return
    with multiprocessing.get_context("spawn").Pool() as pool:
        yield from pool.imap(_file_paragraphs, paths, chunksize=32)


def _file_paragraphs(path: Path) -> list[str]:
    return [paragraph for text in read_strings(path) for paragraph in extract_paragraphs(text)]


def _split_blocks(text: str) -> Iterator[str]:
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


def _string_constants(tree: ast.AST) -> Iterator[ast.Constant]:
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


MAX_LABELS = 6  # packages at most, those with most text
TRAIN_PER_LABEL, TEST_PER_LABEL = (
    60,
    100,
)  # paragraphs of each to learn from, few as labels are, and to be judged on, if there are as many
MIN_PER_LABEL = 30  # of either, or the package is not among them
MIN_WORDS = 12  # of a paragraph that may say where it is from
HELD_OUT_EVERY = 5  # every fifth file is one to be judged on


@dataclass(frozen=True)
class PackageTask:
    """Rows of text and label, as many of each label; what is judged is from files that nothing is learnt from."""

    labels: list[str]
    train: list[dict[str, str]]
    test: list[dict[str, str]]
    held_out_files: set[tuple[str, str]]  # package and path of the files that `judge` is from


def build_task(documents: Sequence[Document]) -> PackageTask | None:
    """The packages with most text, told apart; None if there are no two with enough. The same files give the same task."""
    found = {name: _split_paragraphs(some) for name, some in _group_by_package(documents).items()}
    enough = [name for name, (learn, judge) in found.items() if min(len(learn), len(judge)) >= MIN_PER_LABEL]
    labels = sorted(sorted(enough, key=lambda name: (-len(found[name][0]), name))[:MAX_LABELS])
    if len(labels) < 2:
        return None
    learn, judge = ([found[name][side] for name in labels] for side in (0, 1))
    held_out = {(one.package, one.path) for one in documents if one.package in labels and _is_held_out(one)}
    return PackageTask(
        labels, _balanced_rows(labels, learn, TRAIN_PER_LABEL), _balanced_rows(labels, judge, TEST_PER_LABEL), held_out
    )


def to_json_lines(rows: Iterable[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _group_by_package(documents: Iterable[Document]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        found[document.package].append(document)
    return found


def _split_paragraphs(documents: Iterable[Document]) -> tuple[list[str], list[str]]:
    """Paragraphs to learn from and to be judged on; the first of each file come first, so that no file is most of them."""
    sides: tuple[list[list[str]], list[list[str]]] = [], []
    for document in sorted(documents, key=lambda one: _hash_text(one.path)):
        long = [paragraph for paragraph in document.paragraphs if len(paragraph.split()) >= MIN_WORDS]
        sides[_is_held_out(document)].append(sorted(long, key=_hash_text))
    learn, judge = ([text for text in chain.from_iterable(zip_longest(*side)) if text] for side in sides)
    return learn, judge


def _balanced_rows(labels: list[str], texts: list[list[str]], max_per_label: int) -> list[dict[str, str]]:
    """As many of each label, in an order that has nothing to do with it."""
    size = min(max_per_label, *map(len, texts))
    rows = [{"text": text, "label": label} for label, some in zip(labels, texts, strict=True) for text in some[:size]]
    return sorted(rows, key=lambda row: _hash_text(row["text"]))


def _is_held_out(document: Document) -> bool:
    return _hash_text(f"{document.package}: {document.path}")[0] % HELD_OUT_EVERY == 0


def _hash_text(text: str) -> bytes:
    """A throw of dice that falls alike for the same text, everywhere."""
    return hashlib.sha256(text.encode()).digest()
