"""TensorFlow's checkpoint bundle without TensorFlow: an index of tensors, and their bytes in one or more files."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import BadInput
from .crc32c import crc32c, masked
from .sstable import Malformed, entries, fields, numbers, signed

BFLOAT16, STRING = 14, 7
# The numbers of TensorFlow's DataType, for what a checkpoint's variables are made of.
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", BFLOAT16: "<u2", 17: "<u2", 19: "<f2",
          22: "<u4", 23: "<u8"}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies and what it is."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int  # masked
    sliced: bool  # its parts are entries of their own


class Bundle:
    """A checkpoint by its prefix: `bert_model.ckpt`, beside which lie `.index` and `.data-00000-of-00001`."""

    def __init__(self, prefix: Path) -> None:
        self.prefix, self.index = prefix, prefix.with_name(prefix.name + ".index")
        try:
            found = dict(entries(self.index.read_bytes()))
            self.shards = _shards(found.pop(b"", b""))
            self.entries = {key.decode(): _entry(value) for key, value in found.items()}
        except FileNotFoundError:
            raise BadInput(f"there is no {self.index}; a TensorFlow checkpoint is named by what comes before .index") from None
        except (Malformed, UnicodeDecodeError) as fault:
            raise BadInput(f"{self.index} cannot be read: {fault}; copy or download it again") from None

    def read(self, name: str) -> NDArray[np.generic]:
        """A tensor with its checksum checked, in the numbers it was stored in; bfloat16 becomes float32."""
        entry = self.entries[name]
        self._check(name, entry)
        data = self._bytes(name, entry)
        if masked(crc32c(data)) != entry.crc:
            raise BadInput(f"{name} in {self._file(entry)} is damaged at byte {entry.offset:,} (its checksum is wrong); copy "
                           "or download it again")  # fmt: skip
        array = np.frombuffer(data, DTYPES[entry.dtype])
        if entry.dtype == BFLOAT16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.reshape(entry.shape)

    def files(self) -> list[Path]:
        """The index and every file of data that a tensor lies in."""
        return [self.index, *sorted({self._file(entry) for entry in self.entries.values() if not entry.sliced})]

    def _check(self, name: str, entry: Entry) -> None:
        if entry.sliced:
            raise BadInput(f"{name} in {self.index} is stored in slices, as one trained on parameter servers is; save it again "
                           "unpartitioned")  # fmt: skip
        if entry.dtype not in DTYPES:
            kind = "text" if entry.dtype == STRING else f"type {entry.dtype}"
            raise BadInput(f"{name} in {self.index} holds {kind}, not numbers of a kind known here")
        needed = prod(entry.shape) * np.dtype(DTYPES[entry.dtype]).itemsize
        if needed != entry.size:
            raise BadInput(f"{name} in {self.index} has the shape {list(entry.shape)}, {needed:,} bytes, but is said to take "
                           f"{entry.size:,}; the index is damaged: copy or download it again")  # fmt: skip

    def _bytes(self, name: str, entry: Entry) -> bytes:
        path = self._file(entry)
        try:
            if (size := path.stat().st_size) < entry.offset + entry.size:
                raise BadInput(f"{path} is truncated: {name} ends at byte {entry.offset + entry.size:,}, the file at {size:,}; "
                               "copy or download it again")  # fmt: skip
            with path.open("rb") as file:
                file.seek(entry.offset)
                return file.read(entry.size)
        except FileNotFoundError:
            raise BadInput(f"{path} is missing, though {self.index} says that {name} lies in it") from None

    def _file(self, entry: Entry) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.shards:05d}")


def _shards(header: bytes) -> int:
    """How many files of data there are, from the entry without a name."""
    told = numbers(header)
    if told.get(2):
        raise Malformed("its numbers are big-endian")
    if not 0 < told.get(1, 0) <= 99_999:
        raise Malformed(f"it names {told.get(1, 0):,} files of data")
    return told[1]


def _entry(value: bytes) -> Entry:
    told = numbers(value)
    shape = next((part for number, part in fields(value) if number == 2 and isinstance(part, bytes)), b"")
    sizes = tuple(signed(numbers(part).get(1, 0)) for number, part in fields(shape) if number == 2 and isinstance(part, bytes))
    if numbers(shape).get(3) or any(size < 0 for size in sizes):
        raise Malformed(f"a tensor has no definite shape: {list(sizes)}")
    shard, offset, size = (told.get(number, 0) for number in (3, 4, 5))
    if max(offset, size, *sizes, 0) >= 1 << 62 or shard > 99_999 or len(sizes) > 32:
        raise Malformed(f"a tensor has an impossible place: file {shard}, byte {offset}, {size} bytes, {len(sizes)} axes")
    sliced = any(number == 7 for number, _ in fields(value))
    return Entry(told.get(1, 0), sizes, shard, offset, size, told.get(6, 0), sliced)
