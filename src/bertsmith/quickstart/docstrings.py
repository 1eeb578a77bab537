"""English text from the docstrings of the standard library and installed packages, and a classification task built from it.

`collect_documents` extracts paragraphs of prose from source files; `build_task` makes a classification task (which package
a paragraph is from) whose test paragraphs come from files that are held out of training.
"""

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

MAX_CHARACTERS = 12_000_000  # of text to collect
MAX_FILE_SIZE = 2_000_000  # characters of a source file; longer ones are generated
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
MIN_QUOTED_FRACTION = 0.15  # of a file inside triple quotes; below it, the file is not parsed, to save time
MIN_PARALLEL_FILES = 300  # below it, one process is faster
TOPICS_FILE = "pydoc_data/topics.py"  # Python's language reference, read first
MAX_LABELS = 6  # of the task: the packages with most text
TRAIN_PER_LABEL, TEST_PER_LABEL = 60, 100  # paragraphs at most
MIN_PER_LABEL = 30  # in training and in test, or the package is left out
MIN_WORDS = 12  # of a paragraph of the task
HELD_OUT_EVERY = 5  # every fifth file is for testing

ROLE = re.compile(r":[a-z:]+:`~?([^`<]*[^`<\s])(?:\s*<[^`]*>)?`")  # :class:`~a.B`, :ref:`words <label>`
MARKUP = re.compile(r"`+([^`\n]+?)(?:\s<[^`]*>)?`+_*|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\n]+)\*(?![\w*])")
LINK = re.compile(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])")  # [words](address), [words][label]
CODE = re.compile(r">>>|://|->|==| = |[{}|\\<>]|\.\. |::|\[\[")
QUOTED = re.compile(r'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.S)
WORD = re.compile(r"""[("'\[]*[A-Za-z][A-Za-z]*(?:['’-][A-Za-z]+)*[)"'\].,;:!?]*""")
UNDERLINE = re.compile(r"([=\-~^*#\"'.`+_])\1{2,}")


def library_folders() -> list[Path]:
    """Folders of the standard library and of this environment's installed packages."""
    paths = sysconfig.get_paths()
    return list(dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")))


class Document(NamedTuple):
    """The prose of one source file."""

    package: str  # top-level package; `python` for the standard library
    path: str  # of the file, relative to the root
    paragraphs: list[str]

    @property
    def text(self) -> str:
        """One paragraph per line."""
        return "\n".join(self.paragraphs) + "\n"


def collect_documents(
    roots: Sequence[Path] = (),
    max_characters: int = MAX_CHARACTERS,
    on_read: Callable[[int, int], None] = lambda done, of: None,
) -> list[Document]:
    """Documents until they have `max_characters`; `on_read(characters, max_characters)` reports progress."""
    documents, characters = [], 0
    for document in iter_documents(roots or library_folders()):
        documents.append(document)
        characters += len(document.text)
        on_read(min(characters, max_characters), max_characters)
        if characters >= max_characters:
            break
    if not documents:
        raise UserError(
            f"no docstrings in {', '.join(map(str, roots or library_folders()))}; set roots to folders with Python files"
        )
    return documents


def to_corpus_text(documents: Iterable[Document]) -> bytes:
    """The format of corpus files: a blank line between documents."""
    return "\n".join(document.text for document in documents).encode()


def iter_documents(roots: Sequence[Path]) -> Iterator[Document]:
    """Documents of source files with at least two paragraphs of prose that no earlier file has.

    Files are parsed, never imported. The order is that of `roots`, then of file names.
    """
    seen: set[str] = set()
    files = [(root, path) for root in roots for path in list_source_files(root)]
    for (root, path), paragraphs in zip(files, _read_paragraphs([path for _, path in files]), strict=True):
        new_paragraphs = dict.fromkeys(paragraph for paragraph in paragraphs if paragraph not in seen)
        seen.update(new_paragraphs)
        if len(new_paragraphs) > 1:
            yield Document(package_name(root, path), path.relative_to(root).as_posix(), list(new_paragraphs))


def package_name(root: Path, path: Path) -> str:
    return "python" if root == library_folders()[0] else path.relative_to(root).parts[0].removesuffix(".py")


def list_source_files(root: Path) -> list[Path]:
    """Python files below a folder, sorted, without tests, vendored and generated code."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root} to read docstrings from")
    paths = [path for path in root.rglob("*.py") if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts[:-1])]
    sources = (path for path in paths if not path.name.startswith("test_") and not path.stem.endswith(("_test", "_pb2")))
    return sorted(sources, key=lambda path: (not path.as_posix().endswith(TOPICS_FILE), path.relative_to(root).as_posix()))


def read_strings(path: Path) -> list[str]:
    """Docstrings and other multi-line string constants of a file, in source order."""
    try:
        source = path.read_text(encoding="utf-8")
        if len(source) > MAX_FILE_SIZE or sum(len(m[0]) for m in QUOTED.finditer(source)) < MIN_QUOTED_FRACTION * len(source):
            return []
        with warnings.catch_warnings(action="ignore"):  # of invalid escape sequences
            tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError, RecursionError):  # templates, old Python, other encodings
        return []
    constants = sorted((node.lineno, node.col_offset, str(node.value)) for node in _string_constants(tree))
    return [text for _, _, text in constants]


def extract_paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a docstring that are prose, with markup removed; code, tables, headings and lists are left out."""
    for block in _split_blocks(inspect.cleandoc(text)):
        plain = MARKUP.sub(lambda m: m[1] or m[2] or m[3], LINK.sub(r"\1", ROLE.sub(r"\1", block)))
        plain = " ".join(plain.split()).replace("--", "-")
        if is_prose(plain):
            yield plain


def is_prose(text: str) -> bool:
    """Whether the text is complete sentences of words, not a signature, a table or a formula."""
    words = text.split()
    if len(words) < 6 or not text[0].isupper() or not text.rstrip("\"')”").endswith((".", "!", "?")) or CODE.search(text):
        return False
    return text.isascii() and sum(bool(WORD.fullmatch(word)) for word in words) >= 0.85 * len(words)


def _read_paragraphs(paths: list[Path]) -> Iterator[list[str]]:
    """Paragraphs of each file, in order, with one process per core."""
    if len(paths) < MIN_PARALLEL_FILES or (os.cpu_count() or 1) < 2:
        yield from map(_file_paragraphs, paths)
        return
    with multiprocessing.get_context("spawn").Pool() as pool:
        yield from pool.imap(_file_paragraphs, paths, chunksize=32)


def _file_paragraphs(path: Path) -> list[str]:
    return [paragraph for text in read_strings(path) for paragraph in extract_paragraphs(text)]


def _split_blocks(text: str) -> Iterator[str]:
    """Runs of lines of equal indentation between blank lines; what is indented under a line ending with :: is code."""
    lines: list[str] = []
    indent, code_indent = 0, -1
    for line in [*text.split("\n"), ""]:
        stripped = line.strip()
        line_indent = len(line) - len(line.lstrip()) if stripped else indent
        if stripped and line_indent <= code_indent:
            code_indent = -1
        if lines and (not stripped or line_indent != indent or UNDERLINE.fullmatch(stripped)):
            if not UNDERLINE.fullmatch(stripped):
                yield "\n".join(lines)
            lines = []
        if not stripped or code_indent >= 0 or UNDERLINE.fullmatch(stripped):
            continue
        lines, indent = [*lines, stripped], line_indent
        if stripped.endswith("::") or stripped.startswith(".. "):
            code_indent = line_indent


def _string_constants(tree: ast.AST) -> Iterator[ast.Constant]:
    """String expressions (docstrings) and string constants of several lines, without parts of f-strings."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("\n") > 1:
            yield node
        elif not isinstance(node, ast.JoinedStr):
            stack.extend(ast.iter_child_nodes(node))


@dataclass(frozen=True)
class PackageTask:
    """Classification of paragraphs by package: balanced rows {text, label}; test rows come from held-out files."""

    labels: list[str]
    train: list[dict[str, str]]
    test: list[dict[str, str]]
    held_out_files: set[tuple[str, str]]  # (package, path) of the files of `test`


def build_task(documents: Sequence[Document]) -> PackageTask | None:
    """The task of the packages with most text; None with fewer than two. Deterministic for the same files."""
    paragraphs = {
        name: _split_paragraphs(package_documents) for name, package_documents in _group_by_package(documents).items()
    }
    candidates = [name for name, (train, test) in paragraphs.items() if min(len(train), len(test)) >= MIN_PER_LABEL]
    labels = sorted(sorted(candidates, key=lambda name: (-len(paragraphs[name][0]), name))[:MAX_LABELS])
    if len(labels) < 2:
        return None
    train, test = ([paragraphs[name][split] for name in labels] for split in (0, 1))
    held_out = {
        (document.package, document.path) for document in documents if document.package in labels and _is_held_out(document)
    }
    return PackageTask(
        labels, _balanced_rows(labels, train, TRAIN_PER_LABEL), _balanced_rows(labels, test, TEST_PER_LABEL), held_out
    )


def to_json_lines(rows: Iterable[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _group_by_package(documents: Iterable[Document]) -> dict[str, list[Document]]:
    groups: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        groups[document.package].append(document)
    return groups


def _split_paragraphs(documents: Iterable[Document]) -> tuple[list[str], list[str]]:
    """Training and test paragraphs, taken from the files in turn, so that no file dominates."""
    splits: tuple[list[list[str]], list[list[str]]] = [], []
    for document in sorted(documents, key=lambda document: _hash_text(document.path)):
        long = [paragraph for paragraph in document.paragraphs if len(paragraph.split()) >= MIN_WORDS]
        splits[_is_held_out(document)].append(sorted(long, key=_hash_text))
    train, test = ([text for text in chain.from_iterable(zip_longest(*split)) if text] for split in splits)
    return train, test


def _balanced_rows(labels: list[str], texts: list[list[str]], max_per_label: int) -> list[dict[str, str]]:
    """Rows with equally many per label, in an order independent of it."""
    size = min(max_per_label, *map(len, texts))
    rows = [
        {"text": text, "label": label} for label, label_texts in zip(labels, texts, strict=True) for text in label_texts[:size]
    ]
    return sorted(rows, key=lambda row: _hash_text(row["text"]))


def _is_held_out(document: Document) -> bool:
    return _hash_text(f"{document.package}: {document.path}")[0] % HELD_OUT_EVERY == 0


def _hash_text(text: str) -> bytes:
    """A hash for pseudo-random order that is the same on every machine."""
    return hashlib.sha256(text.encode()).digest()
