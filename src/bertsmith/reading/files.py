"""Regular files, opened and read whole up to a limit."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ..errors import UserError

_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}  # fmt: skip


def require_regular(path: Path) -> Path:
    """Return `path` unless it is a pipe, device, socket or folder, for libraries that open a file by its name.

    Links are followed, since the caches of model hubs consist of them. A missing file is an OSError.
    """
    _check_kind(path, path.stat().st_mode)
    return path


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file in binary mode, without waiting for the other end if it is a pipe after all."""
    require_regular(path)
    return open(path, "rb", opener=_open_at_once)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The bytes that a file has when it is opened; more than `max_bytes` are a UserError."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > max_bytes:
            raise UserError(
                f"{path} has {size:,} bytes, more than the {max_bytes:,} that such a file may have; it is of another kind"
            )
        return file.read(size)


def read_text(path: Path, max_bytes: int) -> str:
    """UTF-8 text, with or without a byte order mark."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged, or not text in UTF-8: {error}") from None


def _open_at_once(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check_kind(Path(path), os.fstat(descriptor).st_mode)
    except UserError:
        os.close(descriptor)
        raise
    return descriptor


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise UserError(f"{path} is {kind}, but must be a regular file; give one, or copy the contents into one")
