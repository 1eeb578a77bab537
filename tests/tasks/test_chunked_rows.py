"""A file that is read some rows at a time shows every sentence what it would see if all rows were there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks import TokenClassification
from bertsmith.tasks.chunked_rows import DocumentContext, chunk_rows
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.requests import Request
from bertsmith.tasks.table_rows import BadRow
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.conftest import PIECES

TOKENIZER = Tokenizer.from_vocab(PIECES)
WORDS = ("the", "people", "zebra", "water", "\x07")  # of one piece, of several, of none


def asked(document, tokens):
    return Request(Sentence(tokens=tuple(tokens), document=document, source="a.txt"))


ROWS = st.lists(
    st.one_of(
        st.builds(asked, st.sampled_from(["0", "0", "0", "1", None]), st.lists(st.sampled_from(WORDS), max_size=6)),
        st.just(BadRow("a bad row")),
    ),
    max_size=30,
)


def good(rows):
    return [one.example for one in rows if not isinstance(one, BadRow)]


def sequences(task, examples, length, start=0, stop=None):
    stop = len(examples) if stop is None else stop
    encoded = task.encode(examples, TOKENIZER, length).only(start, stop)
    return [(owner + start, ids.tolist()) for owner, ids in zip(encoded.example.tolist(), encoded.ids, strict=True)]


@given(rows=ROWS, size=st.integers(1, 7), length=st.integers(4, 20), context=st.one_of(st.just(True), st.integers(1, 8)))
def test_sequences_are_those_of_the_whole_file(rows, size, length, context):
    task = TokenClassification(labels=("O",), context=context)
    found, told = [], []
    for one in chunk_rows(iter(rows), size, DocumentContext(task, TOKENIZER, length)):
        before, here, after = good(one.before), good(one.rows), good(one.after)
        mine = sequences(task, [*before, *here, *after], length, len(before), len(before) + len(here))
        found += [(owner - len(before) + len(good(told)), ids) for owner, ids in mine]
        told += one.rows
    assert told == rows
    assert found == sequences(task, good(rows), length)


def test_only_rows_that_are_seen_are_read_ahead_and_kept():
    read = []

    def file():
        for number in range(100):
            read.append(number)
            yield asked("0" if number < 50 else "1", ["the", "people"])

    found = chunk_rows(file(), 10, DocumentContext(TokenClassification(context=5), TOKENIZER, 32))
    sizes = [(len(one.before), len(one.rows), len(one.after), len(read)) for one in found]
    assert sizes[0] == (0, 10, 3, 13) and sizes[1] == (3, 10, 3, 23)
    assert sizes[4] == (3, 10, 0, 51)  # the next document has been met, and is not seen
    assert sizes[9] == (3, 10, 0, 100)


@pytest.mark.parametrize("reach", [None, DocumentContext(TokenClassification(), TOKENIZER, 32)])
def test_without_context_nothing_is_read_ahead(reach):
    rows = iter([asked("0", ["the"])] * 5)
    first = next(chunk_rows(rows, 2, reach))
    assert (len(first.rows), len(first.before), len(first.after)) == (2, 0, 0)
    assert len(list(rows)) == 3
