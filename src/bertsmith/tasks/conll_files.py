"""Sentences of tagged tokens, from CoNLL's columns or JSON lines."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..tokenization.tables import Lines
from .base import Example
from .special_tokens import Named
from .table_rows import SKIP, BadRow, Row, rows

_PACKED, _JSON = {".gz", ".xz", ".bz2", ".zst"}, {".jsonl", ".ndjson"}
_SPACES, _BEGINS = re.compile(" +"), "-DOCSTART-"
_LOOK, _SENTENCE = 1000, 4  # lines that are looked at; pieces, more than which a token seldom has
_PIECE = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+|[^\w\s]")
_TAG = re.compile(r"O|[BIESLUM]-\S+")
_WAY_OUT = f"mend the row, or leave such sentences out by {SKIP}"


@dataclass(frozen=True, kw_only=True)
class Sentence(Example):
    """Tokens as they were given, and their tags, if they are known.

    Neighbours with the same source and document are of one document; without a document, a sentence stands alone.
    """

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    document: str | None = None

    @property
    def within(self) -> tuple[str, str] | None:
        """What tells its document from others; None for a sentence that stands alone."""
        return None if self.document is None else (self.source, self.document)


def sentences(path: Path, columns: Mapping[str, str], named: Named = lambda value: ()) -> Iterator[Sentence | BadRow]:
    """Every sentence of a file, or what is wrong with it.

    Of columns, the first is the token and the last the tag, unless `columns` numbers them (from 0); a file of one column
    has no tags. A blank line ends a sentence; a line that begins with -DOCSTART- also begins a document, as does another
    value of `document` in JSON. A file that says nothing of documents is one.
    """
    ending = Path(path.stem).suffix if path.suffix.lower() in _PACKED else path.suffix
    if ending.lower() in _JSON:
        for row in rows(path, columns):
            yield row if isinstance(row, BadRow) else _of_object(row, named)
        return
    token, tag = _numbered(columns, "tokens", 0), _numbered(columns, "tags", -1)
    width = 0  # columns of the first row: the others have as many
    guides = named(partial(_no_column, path))
    for document, block in _blocks(path):
        width = width or len(block[0][1])
        sentence = _of_block(path, document, block, width, token, tag)
        yield replace(sentence, guides=guides) if isinstance(sentence, Sentence) else sentence


def untagged(columns: Mapping[str, str]) -> dict[str, str]:
    """Columns of which only the token is asked for: wherever there is one, there is nothing else to miss."""
    return {**columns, "tags": columns.get("tokens", "0")}


def is_columns(path: Path, labels: Collection[str]) -> bool:
    """Whether a file of lines is columns of tokens, by its first lines; else every line of it is a text.

    Columns are as many in every row, and have tabs between them, or mostly tags in the last: those of `labels`, or any of
    BIO. A single column holds tokens, unless what it holds is as long as sentences (Chinese has no spaces).
    """
    texts = [text for _, text in islice(Lines(path), _LOOK) if not _ends(text)]
    rows = [_fields(text) for text in texts]
    if len({len(fields) for fields in rows}) != 1:
        return not rows
    if len(rows[0]) == 1:
        return sum(len(_PIECE.findall(fields[0])) for fields in rows) <= _SENTENCE * len(rows)
    tags = [fields[-1].strip() for fields in rows]
    return "\t" in texts[0] or 2 * sum(tag in labels or bool(_TAG.fullmatch(tag)) for tag in tags) >= len(tags)


Block = list[tuple[int, list[str]]]


def _blocks(path: Path) -> Iterator[tuple[int, Block]]:
    """The rows of each sentence, by line, and the number of its document."""
    block: Block = []
    document = 0
    for line, text in Lines(path):
        if _ends(text):
            if block:
                yield document, block
            block, document = [], document + text.startswith(_BEGINS)
        else:
            block.append((line, _fields(text)))
    if block:
        yield document, block


def _ends(text: str) -> bool:
    """A line that ends a sentence, and is none of it."""
    return text.startswith(_BEGINS) or not text.strip(" \t")


def _fields(text: str) -> list[str]:
    # Split at what separates, never at any white space: a token may be an ideographic space.
    return text.split("\t") if "\t" in text else _SPACES.split(text.strip(" "))


def _of_block(path: Path, document: int, block: Block, width: int, token: int, tag: int) -> Sentence | BadRow:
    for line, fields in block:
        if fault := _fault(fields, width, token, tag):
            return BadRow(f"{path}, line {line:,}: {fault}; {_WAY_OUT}")
    tokens = tuple(fields[token] for _, fields in block)
    tags = tuple(fields[tag].strip() for _, fields in block) if width > 1 else None
    return Sentence(tokens=tokens, tags=tags, document=str(document), source=str(path), line=block[0][0])


def _fault(fields: list[str], width: int, token: int, tag: int) -> str:
    if any("\udc80" <= character <= "\udcff" for text in fields for character in text):
        return "it is not UTF-8"
    if len(fields) != width:
        return f"{len(fields)} columns, where the file begins with {width}"
    if max(token, tag) >= width:
        return f"it has no column {max(token, tag)}, only 0 to {width - 1}"
    if not fields[token]:
        return "it has no token"
    return "it has no tag" if width > 1 and not fields[tag].strip() else ""


def _numbered(columns: Mapping[str, str], name: str, usual: int) -> int:
    number = columns.get(name, str(usual))
    if not number.removeprefix("-").isdigit():
        raise BadInput(f"columns.{name}={number} is not the number of a column, from 0")
    return int(number)


def _no_column(path: Path, name: str) -> str:
    raise BadInput(
        f"{path}: a guide token of {{{name}}} wants a value a sentence, which CoNLL's columns cannot give; write .jsonl"
    )


def _of_object(row: Row, named: Named) -> Sentence | BadRow:
    try:
        tokens, tags = _texts(row, "tokens"), None if row.get("tags") is None else _texts(row, "tags")
        guides = named(row.cell)
    except BadRow as fault:
        return fault
    if tags is not None and len(tags) != len(tokens):
        return row.bad(f"{len(tokens)} tokens have {len(tags)} tags")
    if isinstance(document := row.get("document"), list | dict):
        return row.bad("document is not a text or a number")
    return Sentence(tokens=tokens, tags=tags, document=str(document), source=str(row.path), line=row.line, guides=guides)


def _texts(row: Row, name: str) -> tuple[str, ...]:
    values: Any = row.need(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise row.bad(f"{name} is not a list of texts")
    return tuple(values)
