"""Reader of TensorFlow's checkpoint bundle format: an .index of tensors, and their bytes in one or more .data shards."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from ...reading import open_regular, read_bytes
from .crc32c import crc32c, mask_crc
from .sstable import FormatError, read_entries, read_fields, read_int_fields, to_int64

BFLOAT16, STRING = 14, 7
MAX_INDEX_BYTES = 32 << 20
# numpy dtypes by TensorFlow's DataType enum (tensorflow/core/framework/types.proto).
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", BFLOAT16: "<u2", 17: "<u2", 19: "<f2",
          22: "<u4", 23: "<u8"}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """BundleEntryProto: dtype, shape and location of a tensor."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int  # masked
    is_sliced: bool  # stored as slices, which are entries of their own


class Bundle:
    """A checkpoint given by its prefix, `bert_model.ckpt` for `bert_model.ckpt.index` and `bert_model.ckpt.data-*`."""

    def __init__(self, prefix: Path) -> None:
        self.prefix, self.index_path = prefix, prefix.with_name(prefix.name + ".index")
        try:
            raw_entries = dict(read_entries(read_bytes(self.index_path, MAX_INDEX_BYTES)))
            self.num_shards = _parse_num_shards(raw_entries.pop(b"", b""))
            self.entries = {key.decode(): _parse_entry(value) for key, value in raw_entries.items()}
        except FileNotFoundError:
            raise UserError(f"there is no {self.index_path}; give the path of a TensorFlow checkpoint without .index") from None
        except (FormatError, UnicodeDecodeError) as error:
            raise UserError(f"{self.index_path} cannot be read: {error}; copy or download it again") from None

    def read_tensor(self, name: str) -> NDArray[np.generic]:
        """Read a tensor and verify its checksum; in its stored dtype, except that bfloat16 becomes float32."""
        entry = self.entries[name]
        self._check_entry(name, entry)
        data = self._read_bytes(name, entry)
        if mask_crc(crc32c(data)) != entry.crc:
            raise UserError(f"{name} in {self._shard_path(entry)} is damaged at byte {entry.offset:,} (its checksum is wrong); "
                           "copy or download it again")  # fmt: skip
        array = np.frombuffer(data, DTYPES[entry.dtype])
        if entry.dtype == BFLOAT16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.reshape(entry.shape)

    def check_sizes(self) -> None:
        """Raise if a .data file goes on behind its last tensor."""
        ends: dict[Path, int] = {}
        for entry in self.entries.values():
            path = self._shard_path(entry)
            ends[path] = max(ends.get(path, 0), entry.offset + entry.size)
        for path, end in ends.items():
            if path.exists() and (size := path.stat().st_size) > end:
                raise UserError(f"{path} has {size:,} bytes instead of {end:,}; copy or download it again")

    def list_files(self) -> list[Path]:
        """The index and every .data file that holds a tensor."""
        return [self.index_path, *sorted({self._shard_path(entry) for entry in self.entries.values() if not entry.is_sliced})]

    def _check_entry(self, name: str, entry: TensorEntry) -> None:
        if entry.is_sliced:
            raise UserError(f"{name} in {self.index_path} is stored in slices (a partitioned variable), which is not "
                           "supported; save the checkpoint without partitioning")  # fmt: skip
        if entry.dtype not in DTYPES:
            dtype = "string" if entry.dtype == STRING else entry.dtype
            raise UserError(f"{name} in {self.index_path} has the dtype {dtype}, which is not supported")
        needed = prod(entry.shape) * np.dtype(DTYPES[entry.dtype]).itemsize
        if needed != entry.size:
            raise UserError(f"{name} in {self.index_path} has shape {list(entry.shape)}, {needed:,} bytes, but its entry says "
                           f"{entry.size:,} bytes; the index is damaged: copy or download it again")  # fmt: skip

    def _read_bytes(self, name: str, entry: TensorEntry) -> bytes:
        path = self._shard_path(entry)
        try:
            if (size := path.stat().st_size) < entry.offset + entry.size:
                raise UserError(f"{path} is truncated: {name} ends at byte {entry.offset + entry.size:,}, but the file has "
                               f"{size:,} bytes; copy or download it again")  # fmt: skip
            with open_regular(path) as file:
                file.seek(entry.offset)
                return file.read(entry.size)
        except FileNotFoundError:
            raise UserError(
                f"{path} is missing, but {self.index_path} lists it for {name}; copy or download it again"
            ) from None

    def _shard_path(self, entry: TensorEntry) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")


def _parse_num_shards(header: bytes) -> int:
    """Number of .data shards, from the header (the entry with an empty key, BundleHeaderProto)."""
    fields = read_int_fields(header)
    if fields.get(2):
        raise FormatError("big-endian checkpoints are not supported")
    if not 0 < fields.get(1, 0) <= 99_999:
        raise FormatError(f"its header says {fields.get(1, 0):,} data files")
    return fields[1]


def _parse_entry(value: bytes) -> TensorEntry:
    fields = read_int_fields(value)
    shape = next((part for number, part in read_fields(value) if number == 2 and isinstance(part, bytes)), b"")
    dims = tuple(
        to_int64(read_int_fields(part).get(1, 0))
        for number, part in read_fields(shape)
        if number == 2 and isinstance(part, bytes)
    )
    if read_int_fields(shape).get(3) or any(size < 0 for size in dims):
        raise FormatError(f"a tensor has an unknown shape: {list(dims)}")
    shard, offset, size = (fields.get(number, 0) for number in (3, 4, 5))
    if max(offset, size, *dims, 0) >= 1 << 62 or shard > 99_999 or len(dims) > 32:
        raise FormatError(f"a tensor has an invalid location: file {shard}, byte {offset}, {size} bytes, {len(dims)} axes")
    is_sliced = any(number == 7 for number, _ in read_fields(value))
    return TensorEntry(fields.get(1, 0), dims, shard, offset, size, fields.get(6, 0), is_sliced)
