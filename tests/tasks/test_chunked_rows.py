"""Reading a file in chunks gives every sentence the same document context as reading it at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks import TokenClassification
from bertsmith.tasks.chunked_rows import DocumentContext, chunk_rows
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tasks.table_rows import BadRow
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)
WORDS = ("the", "people", "zebra", "water", "\x07")  # with one subword, with several, with none


def make_sentence(document, tokens):
    return Sentence(tokens=tuple(tokens), document=document, source="a.txt")


ROWS = st.lists(
    st.one_of(
        st.builds(make_sentence, st.sampled_from(["0", "0", "0", "1", None]), st.lists(st.sampled_from(WORDS), max_size=6)),
        st.just(BadRow("a bad row")),
    ),
    max_size=30,
)


def valid_examples(rows):
    return [row for row in rows if not isinstance(row, BadRow)]


def sequences(task, examples, length, start=0, stop=None):
    stop = len(examples) if stop is None else stop
    encoded = task.encode(examples, TOKENIZER, length).select_examples(start, stop)
    return [(index + start, ids.tolist()) for index, ids in zip(encoded.example_index.tolist(), encoded.input_ids, strict=True)]


@given(rows=ROWS, size=st.integers(1, 7), length=st.integers(4, 20), context=st.one_of(st.just(True), st.integers(1, 8)))
def test_chunked_rows_encode_as_the_whole_file(rows, size, length, context):
    task = TokenClassification(labels=("O",), context=context)
    encoded, seen_rows = [], []
    for chunk in chunk_rows(iter(rows), size, DocumentContext(task, TOKENIZER, length)):
        before, current, after = valid_examples(chunk.before), valid_examples(chunk.rows), valid_examples(chunk.after)
        chunk_sequences = sequences(task, [*before, *current, *after], length, len(before), len(before) + len(current))
        encoded += [(index - len(before) + len(valid_examples(seen_rows)), ids) for index, ids in chunk_sequences]
        seen_rows += chunk.rows
    assert seen_rows == rows
    assert encoded == sequences(task, valid_examples(rows), length)


def test_chunk_rows_reads_ahead_only_context_rows():
    read = []

    def file():
        for number in range(100):
            read.append(number)
            yield make_sentence("0" if number < 50 else "1", ["the", "people"])

    chunks = chunk_rows(file(), 10, DocumentContext(TokenClassification(context=5), TOKENIZER, 32))
    sizes = [(len(chunk.before), len(chunk.rows), len(chunk.after), len(read)) for chunk in chunks]
    assert sizes[0] == (0, 10, 3, 13) and sizes[1] == (3, 10, 3, 23)
    assert sizes[4] == (3, 10, 0, 51)  # one row of the next document was read, and is not context
    assert sizes[9] == (3, 10, 0, 100)


@pytest.mark.parametrize("document_context", [None, DocumentContext(TokenClassification(), TOKENIZER, 32)])
def test_chunk_rows_without_context_reads_nothing_ahead(document_context):
    rows = iter([make_sentence("0", ["the"])] * 5)
    first = next(chunk_rows(rows, 2, document_context))
    assert (len(first.rows), len(first.before), len(first.after)) == (2, 0, 0)
    assert len(list(rows)) == 3
