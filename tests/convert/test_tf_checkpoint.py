"""TensorFlow's bundles are read bit for bit, and whatever is wrong with one is said, never met as a crash or a hang."""

import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.convert.tf_checkpoint.bundle import Bundle
from bertsmith.convert.tf_checkpoint.crc32c import crc32c, mask_crc
from bertsmith.errors import UserError
from tests.convert.tf_checkpoint_writer import block, crc, message, number, table, varint, write_bundle


def arrays():
    rng = np.random.default_rng(0)
    found = {f"bert/encoder/layer_{i}/attention/self/{p}/kernel": rng.normal(size=(4, 3)).astype(np.float32)
             for i in range(6) for p in ("key", "query", "value")}  # fmt: skip
    found |= {"double": rng.normal(size=(5,)), "half": rng.normal(size=(2, 2)).astype(np.float16), "step": np.array(7)}
    return found | {"empty": np.zeros((0, 3), dtype=np.float32)}


def everything(prefix):
    bundle = Bundle(prefix)
    return {name: bundle.read_tensor(name) for name in bundle.entries}


@given(st.binary(max_size=300), st.integers(0, 3))
@settings(max_examples=50)
def test_the_checksum_is_that_of_the_definition(data, times):
    assert mask_crc(crc32c(data * times)) == crc(data * times)


def test_the_checksum_of_more_than_one_chunk(monkeypatch):
    monkeypatch.setattr("bertsmith.convert.tf_checkpoint.crc32c.CHUNK", 64)
    data = np.random.default_rng(0).bytes(1003)
    assert mask_crc(crc32c(data)) == crc(data)
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_come_back_as_they_were(tmp_path, shards):
    write_bundle(tmp_path / "model.ckpt", arrays(), shards)
    found = everything(tmp_path / "model.ckpt")
    assert found.keys() == arrays().keys()
    for name, array in arrays().items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name
    assert len(Bundle(tmp_path / "model.ckpt").list_files()) == 1 + shards


def test_bfloat16_becomes_float32(tmp_path):
    values = np.array([1.0, -2.5, 0.15625], dtype=np.float32)
    write_bundle(tmp_path / "b", {"x": (values.view(np.uint32) >> 16).astype(np.uint16)})
    assert np.array_equal(everything(tmp_path / "b")["x"], values)


def test_a_compressed_block_is_refused(tmp_path):
    write_bundle(tmp_path / "c", arrays(), compression=1)
    with pytest.raises(UserError, match="compressed"):
        Bundle(tmp_path / "c")


def test_damage_truncation_and_absence_are_named(tmp_path):
    prefix = tmp_path / "m"
    with pytest.raises(UserError, match=r"there is no .*m\.index"):
        Bundle(prefix)
    write_bundle(prefix, arrays())
    data = tmp_path / "m.data-00000-of-00001"
    whole = data.read_bytes()
    data.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(UserError, match=r"damaged at byte .* checksum"):
        everything(prefix)
    data.write_bytes(whole[:-4])
    with pytest.raises(UserError, match="truncated"):
        everything(prefix)
    data.unlink()
    with pytest.raises(UserError, match="missing"):
        everything(prefix)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (number(1, 1) + message(2, message(2, number(1, 9))) + number(5, 12), "has the shape"),
        (number(1, 7) + number(5, 0), "text"),
        (number(1, 1) + message(7, b""), "slices"),
        (number(1, 1) + message(2, message(2, number(1, (1 << 64) - 1))), "no definite shape"),
        (number(1, 1) + number(5, 1 << 63), "impossible place"),
        (number(1, 1) + b"\x12\x7f", "cut off"),
        (b"\xff" * 11, "no number"),
    ],
)
def test_impossible_entries_are_refused(tmp_path, value, words):
    (tmp_path / "m.index").write_bytes(table([(b"", number(1, 1)), (b"x", value)]))
    (tmp_path / "m.data-00000-of-00001").write_bytes(b"")
    with pytest.raises(UserError, match=words):
        everything(tmp_path / "m")


@pytest.mark.parametrize("header", [b"", number(1, 0), number(1, 1 << 40), number(1, 1) + number(2, 1)])
def test_impossible_headers_are_refused(tmp_path, header):
    (tmp_path / "m.index").write_bytes(table([(b"", header)]))
    with pytest.raises(UserError, match=r"files of data|big-endian"):
        Bundle(tmp_path / "m")


def test_small_files_that_ask_for_much_work_are_refused_at_once(tmp_path):
    """One block named ten thousand times, and keys that grow by sharing: both would take minutes and gigabytes."""
    body = block([(b"%05d" % i, b"") for i in range(5000)])
    index = block([(b"%05d" % i, varint(0) + varint(len(body) - 5)) for i in range(10_000)])
    tail = varint(len(body)) + varint(0) + varint(len(body)) + varint(len(index) - 5)
    again = body + index + tail.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    for written, words in ((again, "overlap"), (table([(b"a" * 5000 + b"%d" % i, b"") for i in range(9)]), "too long")):
        (tmp_path / "m.index").write_bytes(written)
        began = time.process_time()
        with pytest.raises(UserError, match=words):
            Bundle(tmp_path / "m")
        assert time.process_time() - began < 5


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    prefix = tmp_path_factory.getbasetemp() / "any"
    for written in (data, data + struct.pack("<Q", 0xDB4775248B80FB57)):
        (prefix.with_name("any.index")).write_bytes(written)
        with pytest.raises(UserError):
            Bundle(prefix)


@given(st.data())
@settings(max_examples=150)
def test_a_changed_index_is_read_or_refused(tmp_path_factory, data):
    """Checksums are right, as a malicious writer's are: only the parser stands between the bytes and a crash."""
    prefix = tmp_path_factory.getbasetemp() / "changed"

    def change(body):
        at, size = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(0, 3))
        return body[:at] + data.draw(st.binary(max_size=4)) + body[at + size :]

    write_bundle(prefix, {name: array for name, array in arrays().items() if "layer" not in name}, change=change)
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
def test_a_truncated_index_is_refused(tmp_path_factory, keep):
    prefix = tmp_path_factory.getbasetemp() / "short"
    write_bundle(prefix, {"a": np.ones(3, dtype=np.float32), "b": np.zeros((2, 2))})
    index = prefix.with_name("short.index")
    whole = index.read_bytes()
    index.write_bytes(whole[: keep % len(whole)])
    with pytest.raises(UserError, match=r"short\.index cannot be read"):
        Bundle(prefix)
