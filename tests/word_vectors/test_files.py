"""Files of word vectors: round trips in all formats, and errors that name the line or byte of damage."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from bertsmith.errors import UserError
from bertsmith.word_vectors import FORMATS, KeyedVectors, read_vectors, write_vectors

NAMES = {"text": "v.txt", "binary": "v.bin", "glove": "v.glove", "npy": "v.npy"}
every_format = pytest.mark.parametrize("file_format", FORMATS)
WORD_LISTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \n\r\0"), min_size=1, max_size=12)
    .filter(lambda word: word.isprintable() and not word.isdigit()), min_size=1, max_size=8, unique=True,
)  # fmt: skip
FLOATS = st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False)


def random_vectors(count=20, vector_size=7, seed=0) -> KeyedVectors:
    matrix = np.random.default_rng(seed).normal(size=(count, vector_size)).astype(np.float32)
    return KeyedVectors([f"w{i}" for i in range(count)], matrix)


@every_format
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_vector_files_round_trip(tmp_path, file_format, data):
    words = data.draw(WORD_LISTS)
    matrix = data.draw(hypothesis_numpy.arrays(np.float32, (len(words), data.draw(st.integers(1, 5))), elements=FLOATS))
    write_vectors(tmp_path / NAMES[file_format], KeyedVectors(words, matrix), file_format)
    vectors = read_vectors(tmp_path / NAMES[file_format])
    assert vectors.words == words and vectors.matrix.tobytes() == matrix.tobytes()


def test_vector_text_file_of_several_blocks_keeps_order(tmp_path):
    vectors = random_vectors(10_000, 3)
    write_vectors(tmp_path / "v.txt", vectors)
    result = read_vectors(tmp_path / "v.txt")
    assert result.words == vectors.words and (result.matrix == vectors.matrix).all()


def test_vector_text_file_may_be_compressed_and_have_words_with_spaces(tmp_path):
    with gzip.open(tmp_path / "glove.txt.gz", "wb") as file:
        file.write("the 0.5 -1e-3\n. . . 2 3\n天地 4 5\r\n".encode())
    vectors = read_vectors(tmp_path / "glove.txt.gz")
    assert vectors.words == ["the", ". . .", "天地"] and vectors.matrix.tolist()[1:] == [[2, 3], [4, 5]]


def test_word2vec_binary_with_newlines_is_read(tmp_path):
    king, queen = struct.pack("<2f", 1, 2), struct.pack("<2f", 10, 2.5)
    (tmp_path / "v.bin").write_bytes(b"2 2\nking " + king + b"\nqueen " + queen + b"\n")
    vectors = read_vectors(tmp_path / "v.bin")
    assert vectors.words == ["king", "queen"] and vectors.matrix.tolist() == [[1, 2], [10, 2.5]]


def test_first_of_duplicate_words_is_used(tmp_path):
    (tmp_path / "v.txt").write_text("3 1\na 1\nb 2\na 3\n")
    vectors = read_vectors(tmp_path / "v.txt")
    assert vectors.words == ["a", "b"] and vectors.matrix.ravel().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2\nb 1\n", "line 2: 'b 1' is not a word and 2 values"),
        ("a 1 2\nb 1 2 3\nc 1 x\n", "line 3: 'x', in the vector of 'c', is not a number"),
        ("2 2\na 1 2\nb 1 nan\n", "line 3: 'nan', in the vector of 'b', is not a finite number"),
        ("a 1 2\nb 1 1e99\n", "the vector of 'b' .row 2. has NaN or infinite values"),
        ("3 2\na 1 2\nb 1 2\n", "truncated, or its header is wrong: it says 3 words, but there are 2"),
        ("2 99999999\na 1 2\n", "line 1: '2 99999999' gives a vector size of 99,999,999"),
        ("word\n", "line 1: 'word' gives a vector size of 0"),
        ("a 1 2\n\nb 1 2\n", "line 2: '' is not a word"),
        ("a 1 2\nb 1_0 2\n", "line 2: '1_0', in the vector of 'b', is not a finite number"),
        ("", "contains no vectors"),
    ],
)
def test_malformed_vector_text_names_line(tmp_path, text, message):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        read_vectors(tmp_path / "v.txt")


def test_vector_file_with_invalid_utf8_names_word(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"a 1\n\xff\xfeb 2\n")
    with pytest.raises(UserError, match=r"line 2: .* is not UTF-8"):
        read_vectors(tmp_path / "v.txt")
    (tmp_path / "v.bin").write_bytes(b"1 1\n\xff " + struct.pack("<f", 1))
    with pytest.raises(UserError, match=r"byte 4: .* is not UTF-8"):
        read_vectors(tmp_path / "v.bin")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 0: '' is not the header"),
        (b"king queen\n", "byte 0: 'king queen' is not the header"),
        (b"999999999999 300\nking ", "999,999,999,999 vectors of size 300 take more than its 22 bytes"),
        (b"1 2\n" + b"x" * 5000, "byte 4: no word before vector 1"),
        (b"1 2\nkingkongs 1234567", "ends at byte 21, in the vector of 'kingkongs' .1 of 1"),
    ],
)
def test_malformed_vector_binary_names_byte(tmp_path, data, message):
    (tmp_path / "v.bin").write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_vectors(tmp_path / "v.bin")


@pytest.mark.parametrize("file_format", ["text", "binary"])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offset=st.integers(0, 200), value=st.integers(0, 255), length=st.integers(0, 220))
def test_damaged_vector_file_is_read_or_refused(tmp_path, file_format, offset, value, length):
    path = tmp_path / NAMES[file_format]
    write_vectors(path, random_vectors(5, 4), file_format)
    data = bytearray(path.read_bytes())[: length or None]
    if offset < len(data):
        data[offset] = value
    path.write_bytes(data)
    try:
        assert len(read_vectors(path)) <= 99
    except UserError as error:
        assert str(path) in str(error)


def test_npy_vectors_need_matching_word_list(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((2, 3)))
    with pytest.raises(UserError, match="needs a list of its words"):
        read_vectors(tmp_path / "v.npy")
    (tmp_path / "v.words.txt").write_text("one\n")
    with pytest.raises(UserError, match="1 words"):
        read_vectors(tmp_path / "v.npy")
    np.save(tmp_path / "v.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match="only numbers are read"):
        read_vectors(tmp_path / "v.npy")


@pytest.mark.parametrize("file_format", ["text", "binary", "glove"])
def test_words_with_separators_are_refused_by_text_and_binary(tmp_path, file_format):
    for word in ("new york", "a\nb", ""):
        with pytest.raises(UserError, match=r"write \.npy"):
            write_vectors(tmp_path / "v", KeyedVectors([word], np.ones((1, 2))), file_format)
    assert not list(tmp_path.iterdir())


def test_npy_word_list_may_have_crlf(tmp_path):
    np.save(tmp_path / "v.npy", np.eye(2))
    (tmp_path / "v.words.txt").write_bytes(b"king\r\nqueen\r\n")
    assert read_vectors(tmp_path / "v.npy").words == ["king", "queen"]


def test_npy_vectors_and_words_are_written_atomically(tmp_path, monkeypatch):
    write_vectors(tmp_path / "v.npy", KeyedVectors(["king", "queen"], np.eye(2)))

    def raise_disk_full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(np, "save", raise_disk_full)
        write_vectors(tmp_path / "v.npy", KeyedVectors(["queen", "king"], 3 * np.eye(2)))
    assert read_vectors(tmp_path / "v.npy").words == ["king", "queen"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.npy", "v.words.txt"]


@pytest.mark.parametrize("name", ["v.kv", "v.model", "v.bin", "v.txt"])
def test_pickle_of_gensim_is_refused_with_what_to_save_instead(name, tmp_path):
    (tmp_path / name).write_bytes(pickle.dumps({"vectors": [1.0, 2.0]}, protocol=4))
    with pytest.raises(
        UserError, match=rf"is a pickle.*KeyedVectors.load\('{name}'\).save_word2vec_format\('v.bin', binary=True\)"
    ):
        read_vectors(tmp_path / name)
