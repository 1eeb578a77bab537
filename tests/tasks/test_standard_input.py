"""Rows of standard input: the format of the first line, answers as rows arrive, encodings, and invalid rows."""

import io
import os

import pytest

from bertsmith.errors import UserError
from bertsmith.tasks import standard_input
from bertsmith.tasks.requests import TextRow
from bertsmith.tasks.standard_input import InputLines, iter_available, read_input_requests, read_input_texts
from tests.support.models import TASKS


def read_texts_of(data, encoding="utf-8", **options):
    return list(read_input_texts(InputLines(io.BytesIO(data), encoding), {}, **options))


def test_lines_are_texts_and_objects_are_rows():
    assert read_texts_of(b"\xef\xbb\xbfone\r\n\n{two\nthree") == [TextRow(text) for text in ("one", "", "{two", "three")]
    assert read_texts_of(b'\n{"text": "one", "id": 7}\n\n{"text": "two"}\n') == [TextRow("one", 7), TextRow("two")]
    assert read_texts_of("漢字\nお\n".encode("gb18030"), "gb18030") == [TextRow("漢字"), TextRow("お")]
    assert read_texts_of("æ\n{".encode("utf-16"), "utf-16") == [TextRow("æ"), TextRow("{")]


def test_lines_do_not_depend_on_how_they_arrive(monkeypatch):
    data = "ein Ärger\n漢字 🎈\r\n\nend".encode()
    whole = read_texts_of(data)
    for size in (1, 2, 3, 7):
        monkeypatch.setattr(standard_input, "READ_BYTES", size)
        assert read_texts_of(data) == whole


def test_rows_of_a_task_keep_their_id_and_ignore_labels():
    data = b'{"question": "who", "context": "the people said", "answers": 3, "id": "q7"}\n'
    (example,) = read_input_requests(TASKS["answer"], InputLines(io.BytesIO(data)))
    assert (example.question, example.context, example.id, example.line) == ("who", "the people said", "q7", 1)
    (example,) = read_input_requests(TASKS["classify"], InputLines(io.BytesIO(b'{"text": "the people", "label": [1]}\n')))
    assert example.text == "the people" and example.label is None


def test_invalid_rows_have_their_line():
    with pytest.raises(UserError, match=r"stdin.jsonl, line 2: text is 3, not a text"):
        read_texts_of(b'{"text": "one"}\n{"text": 3}\n')
    with pytest.raises(UserError, match=r"line 1: it is not JSON"):
        read_texts_of(b'{"text": "one\n')
    with pytest.raises(UserError, match=r"line 2: it is not UTF-8"):
        read_texts_of(b"one\n\xff\n")
    with pytest.raises(UserError, match="standard input is empty"):
        read_texts_of(b"")
    good, bad = read_texts_of(b"one\n\xff\n", skip_bad=True)
    assert good == TextRow("one") and "it is not UTF-8" in str(bad)


def test_rows_that_have_arrived_are_given_before_the_next_line_is_written():
    reader, writer = os.pipe()
    with open(reader, "rb") as stream, open(writer, "wb", buffering=0) as sender:
        lines = InputLines(stream)
        chunks = iter_available(read_input_texts(lines, {}), 3, lines)
        sender.write(b"one\ntwo\nthr")
        assert next(chunks) == [TextRow("one"), TextRow("two")]
        sender.write(b"ee\nfour\nfive\nsix\nseven\n")
        assert next(chunks) == [TextRow(text) for text in ("three", "four", "five")]  # at most three at a time
        assert next(chunks) == [TextRow("six"), TextRow("seven")]
        sender.write(b"eight\n\xff\nnine\n")
        assert next(chunks) == [TextRow("eight")]  # and what is before an invalid row
        with pytest.raises(UserError, match="line 9"):
            next(chunks)


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(standard_input, "MAX_LINE_CHARS", 1000)
    with pytest.raises(UserError, match="a line is longer than 1,000 characters"):
        read_texts_of(b"\0" * 100_000)
