"""Arrays: their headers must fit the size of the file before anything is allocated."""

import io
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import load, save

from bertsmith.errors import UserError
from bertsmith.reading.arrays import map_array, open_npy, read_tensor_headers

DTYPES = st.sampled_from(["float32", "float16", "float64", "int64", "int32", "uint8", "bool"])
ARRAYS = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
CHANGES = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10_000), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(0, 10_000), st.just(0)),
    st.tuples(st.just("extend"), st.integers(1, 100), st.just(0)),
)


def change(data: bytes, kind: str, position: int, bit: int) -> bytes:
    if kind == "extend":
        return data + b"\0" * position
    position %= len(data)
    if kind == "cut":
        return data[:position]
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@given(ARRAYS, st.booleans())
def test_npy_is_read_as_numpy_reads_it(array, is_fortran):
    data = npy(np.asfortranarray(array) if is_fortran else array)
    path = write(data)
    np.testing.assert_array_equal(open_npy(path), np.load(io.BytesIO(data)))


@given(ARRAYS, CHANGES)
def test_changed_npy_is_refused_or_read_as_numpy_reads_it(array, damage):
    data = change(npy(array), *damage)
    try:
        read = open_npy(write(data))
    except UserError:
        return
    expected = np.load(io.BytesIO(data))
    assert read.dtype == expected.dtype and read.tobytes() == expected.tobytes()


@given(st.dictionaries(st.text(max_size=8).filter(lambda name: name != "__metadata__"), ARRAYS, max_size=4))
def test_tensor_headers_are_those_of_safetensors(tensors):
    headers = read_tensor_headers(write(save(tensors)))
    assert {name: header.shape for name, header in headers.items()} == {name: array.shape for name, array in tensors.items()}


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from("abc"), ARRAYS, min_size=1), CHANGES)
def test_headers_of_changed_safetensors_are_refused_or_those_that_the_library_reads(tensors, damage):
    data = change(save(tensors), *damage)
    try:
        headers = read_tensor_headers(write(data))
    except UserError as error:
        assert "\n" not in str(error)
        return
    try:
        read = load(data)
    except Exception:  # the library is stricter; `load_tensors` names the file
        return
    assert {name: header.shape for name, header in headers.items()} == {name: array.shape for name, array in read.items()}


def test_npy_header_of_a_million_million_rows_takes_no_memory(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 300), }"
    data = b"\x93NUMPY\x01\x00" + (128 - 10).to_bytes(2, "little") + header.ljust(117) + b"\n" + b"\0" * 100
    (tmp_path / "huge.npy").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"header says float32 \[1000000000000, 300\], which does not fit its 228 bytes"):
        open_npy(tmp_path / "huge.npy")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_npy_of_objects_is_refused(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match="has elements of dtype object; only numbers are read"):
        open_npy(tmp_path / "objects.npy")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]},
        {"dtype": "F32", "shape": [1, 10**12], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "X", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]},
        [], None, 1,
    ],
)  # fmt: skip
def test_safetensors_header_that_does_not_fit_its_file_is_refused(entry, tmp_path):
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read"):
        read_tensor_headers(tmp_path / "model.safetensors")


def test_safetensors_header_longer_than_its_file_takes_no_memory(tmp_path):
    (tmp_path / "model.safetensors").write_bytes((10**15).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match="its 10 bytes have no whole header"):
        read_tensor_headers(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_tensor_headers(tmp_path / "absent.safetensors")


def test_mapped_file_must_hold_whole_elements(tmp_path):
    (tmp_path / "tokens.bin").write_bytes(b"\0\1\0\2")
    assert map_array(tmp_path / "tokens.bin", ">u2").tolist() == [1, 2]
    with pytest.raises(UserError, match="its 4 bytes are no whole number of elements of 8 bytes"):
        map_array(tmp_path / "tokens.bin", np.int64)
    (tmp_path / "empty").touch()
    assert len(map_array(tmp_path / "empty", np.int64)) == 0


@pytest.fixture(autouse=True, scope="module")
def scratch(tmp_path_factory):
    write.path = tmp_path_factory.mktemp("arrays") / "data"


def write(data: bytes):
    """The file that holds these bytes; one for all examples of a property."""
    write.path.unlink(missing_ok=True)  # it may be mapped
    write.path.write_bytes(data)
    return write.path
