"""Read tagged sentences from CoNLL column files or JSON lines."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..tokenization.tables import UTF8, LineReader, find_decoding_error, is_json
from .base import Example
from .special_tokens import TemplateFiller
from .table_rows import SKIP_HINT, BadRow, ExampleRow, is_plain_text, read_rows

_COMPRESSED_SUFFIXES, _JSON_SUFFIXES = {".gz", ".xz", ".bz2", ".zst"}, {".jsonl", ".ndjson", ".parquet"}
_SPACES, _DOCSTART = re.compile(" +"), "-DOCSTART-"
_SNIFF_LINES, _MAX_WORDS_PER_TOKEN = (
    1000,
    4,
)  # lines read to detect the format; words per line above which lines are sentences, not tokens
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+|[^\w\s]")
_TAG = re.compile(r"O|[BIESLUM]-\S+")
_SKIP_HINT = f"fix the row, or skip such sentences with {SKIP_HINT}"


@dataclass(frozen=True, kw_only=True)
class Sentence(Example):
    """Pre-tokenized sentence with one tag per token, if known.

    Consecutive sentences with the same `source` and `document` form a document; `document=None` is a sentence without one.
    """

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    document: str | None = None
    text: str | None = None  # raw text that was split into the tokens; None: there is none

    @property
    def texts(self) -> list[str]:
        """The tokens: Chinese ones are not joined by spaces."""
        return list(self.tokens)

    @property
    def document_id(self) -> tuple[str, str] | None:
        """Key of its document, unique across files; None for a sentence without a document."""
        return None if self.document is None else (self.source, self.document)


def read_sentences(
    path: Path, columns: Mapping[str, str], fill_template: TemplateFiller = lambda value: (), encoding: str = UTF8
) -> Iterator[Sentence | BadRow]:
    """Every sentence of a file, or a BadRow in its place.

    CoNLL: the first column is the token and the last the tag, unless `columns` gives their numbers (from 0); a file with
    one column has no tags. A blank line ends a sentence, a line starting with -DOCSTART- also starts a new document. JSON
    lines: a new value of `document` starts a new document. A file without document boundaries is one document.
    """
    suffix = Path(path.stem).suffix if path.suffix.lower() in _COMPRESSED_SUFFIXES else path.suffix
    if suffix.lower() in _JSON_SUFFIXES:
        for row in read_rows(path, columns, encoding=encoding):
            yield row if isinstance(row, BadRow) else _parse_json_row(row, fill_template)
        return
    token_column, tag_column = _column_index(columns, "tokens", 0), _column_index(columns, "tags", -1)
    num_columns = 0  # columns of the first row; all rows must have as many
    special_tokens = fill_template(partial(_raise_no_column, path))
    for document, rows in _read_sentence_rows(path, encoding):
        num_columns = num_columns or len(rows[0][1])
        sentence = _parse_sentence_rows(path, document, rows, num_columns, token_column, tag_column, encoding)
        yield replace(sentence, special_tokens=special_tokens) if isinstance(sentence, Sentence) else sentence


def hide_tag_column(columns: Mapping[str, str]) -> dict[str, str]:
    """`columns` with the tag column pointing at the token column, so that a file without tags can be read."""
    return {**columns, "tags": columns.get("tokens", "0")}


def is_json_lines(path: Path) -> bool:
    """Whether a file has JSON lines; CoNLL files have any suffix."""
    try:
        return not is_plain_text(path) and is_json(path)
    except UserError:
        return False


def is_conll(path: Path, labels: Collection[str], encoding: str = UTF8) -> bool:
    """Whether a text file has CoNLL columns, judging by its first lines; otherwise each line is a raw text.

    In CoNLL every row has the same number of columns, separated by tabs, or at least half of the last column are tags
    (in `labels`, or BIO-like). A single column holds tokens unless its lines are as long as sentences (Chinese has no
    spaces).
    """
    texts = [text for _, text in islice(LineReader(path, encoding), _SNIFF_LINES) if not _is_boundary(text)]
    rows = [_split_fields(text) for text in texts]
    if len({len(fields) for fields in rows}) != 1:
        return not rows
    if len(rows[0]) == 1:
        return sum(len(_WORD.findall(fields[0])) for fields in rows) <= _MAX_WORDS_PER_TOKEN * len(rows)
    tags = [fields[-1].strip() for fields in rows]
    return "\t" in texts[0] or 2 * sum(tag in labels or bool(_TAG.fullmatch(tag)) for tag in tags) >= len(tags)


SentenceRows = list[tuple[int, list[str]]]


def _read_sentence_rows(path: Path, encoding: str) -> Iterator[tuple[int, SentenceRows]]:
    """Rows of each sentence, (line number, fields) each, and the number of its document."""
    rows: SentenceRows = []
    document = 0
    for line, text in LineReader(path, encoding):
        if _is_boundary(text):
            if rows:
                yield document, rows
            rows, document = [], document + text.startswith(_DOCSTART)
        else:
            rows.append((line, _split_fields(text)))
    if rows:
        yield document, rows


def _is_boundary(text: str) -> bool:
    """Whether a line separates sentences (blank or -DOCSTART-)."""
    return text.startswith(_DOCSTART) or not text.strip(" \t")


def _split_fields(text: str) -> list[str]:
    # Split at tabs or spaces only, not at any white space: a token may be an ideographic space.
    return text.split("\t") if "\t" in text else _SPACES.split(text.strip(" "))


def _parse_sentence_rows(
    path: Path, document: int, rows: SentenceRows, num_columns: int, token_column: int, tag_column: int, encoding: str
) -> Sentence | BadRow:
    for line, fields in rows:
        if problem := _find_problem(fields, num_columns, token_column, tag_column, encoding):
            return BadRow(f"{path}, line {line:,}: {problem}; {_SKIP_HINT}")
    tokens = tuple(fields[token_column] for _, fields in rows)
    tags = tuple(fields[tag_column].strip() for _, fields in rows) if num_columns > 1 else None
    return Sentence(tokens=tokens, tags=tags, document=str(document), source=str(path), line=rows[0][0])


def _find_problem(fields: list[str], num_columns: int, token_column: int, tag_column: int, encoding: str) -> str:
    if error := find_decoding_error(" ".join(fields), encoding):
        return error
    if len(fields) != num_columns:
        return f"{len(fields)} columns, but the first row of the file has {num_columns}"
    if max(token_column, tag_column) >= num_columns:
        return f"it has no column {max(token_column, tag_column)}, only 0 to {num_columns - 1}"
    if not fields[token_column]:
        return "it has no token"
    return "it has no tag" if num_columns > 1 and not fields[tag_column].strip() else ""


def _column_index(columns: Mapping[str, str], name: str, default: int) -> int:
    number = columns.get(name, str(default))
    if not number.removeprefix("-").isdigit():
        raise UserError(f"columns.{name}={number} is not a column number, counted from 0")
    return int(number)


def _raise_no_column(path: Path, name: str) -> str:
    raise UserError(
        f"{path}: task.template has a column {{{name}}}, one value per sentence, which CoNLL files cannot contain; use .jsonl"
    )


def _parse_json_row(row: ExampleRow, fill_template: TemplateFiller) -> Sentence | BadRow:
    try:
        tokens, tags = _string_list(row, "tokens"), None if row.get("tags") is None else _string_list(row, "tags")
        special_tokens = fill_template(row.get_cell)
    except BadRow as error:
        return error
    if tags is not None and len(tags) != len(tokens):
        return row.error(f"{len(tokens)} tokens but {len(tags)} tags")
    if isinstance(document := row.get("document"), list | dict):
        return row.error("document is not a text or a number")
    return Sentence(
        tokens=tokens,
        tags=tags,
        document=str(document),
        source=str(row.path),
        line=row.line,
        id=row.id,
        special_tokens=special_tokens,
    )


def _string_list(row: ExampleRow, name: str) -> tuple[str, ...]:
    values: Any = row.require(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise row.error(f"{name} is not a list of texts")
    return tuple(values)
