"""TensorFlow checkpoint bundles are read bit for bit; malformed ones are a UserError, never a crash or a hang."""

import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.convert.tf_checkpoint.bundle import Bundle
from bertsmith.convert.tf_checkpoint.crc32c import crc32c, mask_crc
from bertsmith.errors import UserError
from tests.support.tf_checkpoint_writer import (
    bytes_field,
    int_field,
    masked_crc_bitwise,
    varint,
    write_block,
    write_bundle,
    write_table,
)


def example_arrays():
    rng = np.random.default_rng(0)
    arrays = {f"bert/encoder/layer_{i}/attention/self/{p}/kernel": rng.normal(size=(4, 3)).astype(np.float32)
             for i in range(6) for p in ("key", "query", "value")}  # fmt: skip
    arrays |= {"double": rng.normal(size=(5,)), "half": rng.normal(size=(2, 2)).astype(np.float16), "step": np.array(7)}
    return arrays | {"empty": np.zeros((0, 3), dtype=np.float32)}


def read_all(prefix):
    bundle = Bundle(prefix)
    return {name: bundle.read_tensor(name) for name in bundle.entries}


@given(st.binary(max_size=300), st.integers(0, 3))
@settings(max_examples=50)
def test_crc32c_matches_the_bitwise_definition(data, times):
    assert mask_crc(crc32c(data * times)) == masked_crc_bitwise(data * times)


def test_crc32c_of_several_chunks(monkeypatch):
    monkeypatch.setattr("bertsmith.convert.tf_checkpoint.crc32c.CHUNK", 64)
    data = np.random.default_rng(0).bytes(1003)
    assert mask_crc(crc32c(data)) == masked_crc_bitwise(data)
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("shards", [1, 3])
def test_tf_bundle_roundtrip(tmp_path, shards):
    write_bundle(tmp_path / "model.ckpt", example_arrays(), shards)
    tensors = read_all(tmp_path / "model.ckpt")
    assert tensors.keys() == example_arrays().keys()
    for name, array in example_arrays().items():
        assert tensors[name].dtype == array.dtype and np.array_equal(tensors[name], array), name
    assert len(Bundle(tmp_path / "model.ckpt").list_files()) == 1 + shards


def test_tf_bundle_bfloat16_becomes_float32(tmp_path):
    values = np.array([1.0, -2.5, 0.15625], dtype=np.float32)
    write_bundle(tmp_path / "b", {"x": (values.view(np.uint32) >> 16).astype(np.uint16)})
    assert np.array_equal(read_all(tmp_path / "b")["x"], values)


def test_tf_bundle_compressed_block_is_refused(tmp_path):
    write_bundle(tmp_path / "c", example_arrays(), compression=1)
    with pytest.raises(UserError, match="compressed"):
        Bundle(tmp_path / "c")


def test_tf_bundle_damaged_truncated_and_missing_files_are_reported(tmp_path):
    prefix = tmp_path / "m"
    with pytest.raises(UserError, match=r"there is no .*m\.index"):
        Bundle(prefix)
    write_bundle(prefix, example_arrays())
    data = tmp_path / "m.data-00000-of-00001"
    original = data.read_bytes()
    data.write_bytes(original[:40] + bytes([original[40] ^ 1]) + original[41:])
    with pytest.raises(UserError, match=r"damaged at byte .* checksum"):
        read_all(prefix)
    data.write_bytes(original[:-4])
    with pytest.raises(UserError, match="truncated"):
        read_all(prefix)
    data.unlink()
    with pytest.raises(UserError, match="missing"):
        read_all(prefix)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (int_field(1, 1) + bytes_field(2, bytes_field(2, int_field(1, 9))) + int_field(5, 12), "has shape"),
        (int_field(1, 7) + int_field(5, 0), "dtype string"),
        (int_field(1, 1) + bytes_field(7, b""), "slices"),
        (int_field(1, 1) + bytes_field(2, bytes_field(2, int_field(1, (1 << 64) - 1))), "unknown shape"),
        (int_field(1, 1) + int_field(5, 1 << 63), "invalid location"),
        (int_field(1, 1) + b"\x12\x7f", "cut off"),
        (b"\xff" * 11, "no varint"),
    ],
)
def test_tf_bundle_invalid_entries_are_refused(tmp_path, value, message):
    (tmp_path / "m.index").write_bytes(write_table([(b"", int_field(1, 1)), (b"x", value)]))
    (tmp_path / "m.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(UserError, match=message):
        read_all(tmp_path / "m")


@pytest.mark.parametrize("header", [b"", int_field(1, 0), int_field(1, 1 << 40), int_field(1, 1) + int_field(2, 1)])
def test_tf_bundle_invalid_headers_are_refused(tmp_path, header):
    (tmp_path / "m.index").write_bytes(write_table([(b"", header)]))
    with pytest.raises(UserError, match=r"data files|big-endian"):
        Bundle(tmp_path / "m")


def test_tf_bundle_decompression_bombs_are_refused_quickly(tmp_path):
    """One block listed 10,000 times, and keys that grow by prefix sharing: both would take minutes and gigabytes."""
    body = write_block([(b"%05d" % i, b"") for i in range(5000)])
    index = write_block([(b"%05d" % i, varint(0) + varint(len(body) - 5)) for i in range(10_000)])
    tail = varint(len(body)) + varint(0) + varint(len(body)) + varint(len(index) - 5)
    repeated_block = body + index + tail.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    for data, message in (
        (repeated_block, "overlap"),
        (write_table([(b"a" * 5000 + b"%d" % i, b"") for i in range(9)]), "too long"),
    ):
        (tmp_path / "m.index").write_bytes(data)
        start = time.process_time()
        with pytest.raises(UserError, match=message):
            Bundle(tmp_path / "m")
        assert time.process_time() - start < 5


@given(st.binary(max_size=200))
def test_tf_bundle_arbitrary_bytes_are_refused(tmp_path_factory, data):
    prefix = tmp_path_factory.getbasetemp() / "any"
    for contents in (data, data + struct.pack("<Q", 0xDB4775248B80FB57)):
        (prefix.with_name("any.index")).write_bytes(contents)
        with pytest.raises(UserError):
            Bundle(prefix)


@given(st.data())
@settings(max_examples=150)
def test_tf_bundle_mutated_index_is_read_or_refused(tmp_path_factory, data):
    """Checksums are valid, as in a malicious file: only the parser can detect the damage."""
    prefix = tmp_path_factory.getbasetemp() / "changed"

    def change(body):
        start, size = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(0, 3))
        return body[:start] + data.draw(st.binary(max_size=4)) + body[start + size :]

    write_bundle(prefix, {name: array for name, array in example_arrays().items() if "layer" not in name}, change=change)
    try:
        bundle = Bundle(prefix)
    except UserError:
        return
    for name in bundle.entries:
        try:
            assert bundle.read_tensor(name).nbytes <= 100
        except UserError as error:
            assert name in str(error)


@given(st.integers(0, 100_000))
@settings(max_examples=50)
def test_tf_bundle_truncated_index_is_refused(tmp_path_factory, keep):
    prefix = tmp_path_factory.getbasetemp() / "short"
    write_bundle(prefix, {"a": np.ones(3, dtype=np.float32), "b": np.zeros((2, 2))})
    index = prefix.with_name("short.index")
    original = index.read_bytes()
    index.write_bytes(original[: keep % len(original)])
    with pytest.raises(UserError, match=r"short\.index cannot be read"):
        Bundle(prefix)
