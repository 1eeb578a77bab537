"""Files of vectors: what is written is read back, and what is damaged is named by line or byte."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from bertsmith.errors import UserError
from bertsmith.word_vectors import FORMATS, KeyedVectors, read_vectors, write_vectors

NAMES = {"text": "v.txt", "binary": "v.bin", "glove": "v.glove", "npy": "v.npy"}
every_format = pytest.mark.parametrize("form", FORMATS)
words = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" \n\r\0"), min_size=1, max_size=12)
    .filter(lambda word: word.isprintable() and not word.isdigit()), min_size=1, max_size=8, unique=True,
)  # fmt: skip
numbers = st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False)


def made(count=20, width=7, seed=0) -> KeyedVectors:
    matrix = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return KeyedVectors([f"w{number}" for number in range(count)], matrix)


@every_format
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_written_is_read_back_bit_for_bit(tmp_path, form, data):
    names = data.draw(words)
    matrix = data.draw(some.arrays(np.float32, (len(names), data.draw(st.integers(1, 5))), elements=numbers))
    write_vectors(tmp_path / NAMES[form], KeyedVectors(names, matrix), form)
    found = read_vectors(tmp_path / NAMES[form])
    assert found.words == names and found.matrix.tobytes() == matrix.tobytes()


def test_more_rows_than_a_block_come_back_in_order(tmp_path):
    vectors = made(10_000, 3)
    write_vectors(tmp_path / "v.txt", vectors)
    found = read_vectors(tmp_path / "v.txt")
    assert found.words == vectors.words and (found.matrix == vectors.matrix).all()


def test_packed_text_and_words_with_spaces_are_read(tmp_path):
    with gzip.open(tmp_path / "glove.txt.gz", "wb") as file:
        file.write("the 0.5 -1e-3\n. . . 2 3\n天地 4 5\r\n".encode())
    found = read_vectors(tmp_path / "glove.txt.gz")
    assert found.words == ["the", ". . .", "天地"] and found.matrix.tolist()[1:] == [[2, 3], [4, 5]]


def test_the_original_tools_binary_has_a_line_end_behind_each_vector(tmp_path):
    king, queen = struct.pack("<2f", 1, 2), struct.pack("<2f", 10, 2.5)
    (tmp_path / "v.bin").write_bytes(b"2 2\nking " + king + b"\nqueen " + queen + b"\n")
    found = read_vectors(tmp_path / "v.bin")
    assert found.words == ["king", "queen"] and found.matrix.tolist() == [[1, 2], [10, 2.5]]


def test_of_a_word_that_stands_twice_the_first_counts(tmp_path):
    (tmp_path / "v.txt").write_text("3 1\na 1\nb 2\na 3\n")
    found = read_vectors(tmp_path / "v.txt")
    assert found.words == ["a", "b"] and found.matrix.ravel().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a 1 2\nb 1\n", "line 2: 'b 1' is not a word with 2 numbers"),
        ("a 1 2\nb 1 2 3\nc 1 x\n", "line 3: 'x' is no number, in the vector of 'c'"),
        ("2 2\na 1 2\nb 1 nan\n", "line 3: 'nan' is no finite number"),
        ("a 1 2\nb 1 1e99\n", "the vector of 'b' .number 2. holds what is no number"),
        ("3 2\na 1 2\nb 1 2\n", "truncated, or its first line is wrong: that speaks of 3 words, and there are 2"),
        ("2 99999999\na 1 2\n", "line 1: '2 99999999' makes vectors of 99,999,999 numbers"),
        ("word\n", "line 1: 'word' makes vectors of 0 numbers"),
        ("a 1 2\n\nb 1 2\n", "line 2: '' is not a word"),
        ("a 1 2\nb 1_0 2\n", "line 2: '1_0' is no finite number"),
        ("", "holds no vectors"),
    ],
)
def test_a_malformed_text_is_named_by_its_line(tmp_path, text, told):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(UserError, match=told):
        read_vectors(tmp_path / "v.txt")


def test_words_that_are_not_utf8_are_named(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"a 1\n\xff\xfeb 2\n")
    with pytest.raises(UserError, match=r"line 2: .* is not UTF-8"):
        read_vectors(tmp_path / "v.txt")
    (tmp_path / "v.bin").write_bytes(b"1 1\n\xff " + struct.pack("<f", 1))
    with pytest.raises(UserError, match=r"byte 4: .* is not UTF-8"):
        read_vectors(tmp_path / "v.bin")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "byte 0: '' is not the header"),
        (b"king queen\n", "byte 0: 'king queen' is not the header"),
        (b"999999999999 300\nking ", "999,999,999,999 words of 300 numbers take more than its 22 bytes"),
        (b"1 2\n" + b"x" * 5000, "byte 4: no word and space before the vector number 1"),
        (b"1 2\nkingkongs 1234567", "ends at byte 21, inside the vector of 'kingkongs' .number 1 of 1"),
    ],
)
def test_a_malformed_binary_is_named_by_its_byte(tmp_path, data, told):
    (tmp_path / "v.bin").write_bytes(data)
    with pytest.raises(UserError, match=told):
        read_vectors(tmp_path / "v.bin")


@pytest.mark.parametrize("form", ["text", "binary"])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 200), value=st.integers(0, 255), cut=st.integers(0, 220))
def test_any_damage_is_read_or_refused_in_words(tmp_path, form, at, value, cut):
    path = tmp_path / NAMES[form]
    write_vectors(path, made(5, 4), form)
    data = bytearray(path.read_bytes())[: cut or None]
    if at < len(data):
        data[at] = value
    path.write_bytes(data)
    try:
        assert len(read_vectors(path)) <= 99
    except UserError as error:
        assert str(path) in str(error)


def test_an_array_needs_its_words_and_as_many(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((2, 3)))
    with pytest.raises(UserError, match="needs its words"):
        read_vectors(tmp_path / "v.npy")
    (tmp_path / "v.words.txt").write_text("one\n")
    with pytest.raises(UserError, match="1 words"):
        read_vectors(tmp_path / "v.npy")
    np.save(tmp_path / "v.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"cannot be read as \.npy"):
        read_vectors(tmp_path / "v.npy")


@pytest.mark.parametrize("form", ["text", "binary", "glove"])
def test_words_that_a_format_cannot_hold_are_refused(tmp_path, form):
    for word in ("new york", "a\nb", ""):
        with pytest.raises(UserError, match=r"write \.npy"):
            write_vectors(tmp_path / "v", KeyedVectors([word], np.ones((1, 2))), form)
    assert not list(tmp_path.iterdir())


def test_the_words_of_an_array_may_have_the_line_ends_of_windows(tmp_path):
    np.save(tmp_path / "v.npy", np.eye(2))
    (tmp_path / "v.words.txt").write_bytes(b"king\r\nqueen\r\n")
    assert read_vectors(tmp_path / "v.npy").words == ["king", "queen"]


def test_an_array_and_its_words_are_written_together_or_not_at_all(tmp_path, monkeypatch):
    write_vectors(tmp_path / "v.npy", KeyedVectors(["king", "queen"], np.eye(2)))

    def full(*given):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(np, "save", full)
        write_vectors(tmp_path / "v.npy", KeyedVectors(["queen", "king"], 3 * np.eye(2)))
    assert read_vectors(tmp_path / "v.npy").words == ["king", "queen"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.npy", "v.words.txt"]
