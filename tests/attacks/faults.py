"""Breaks the n-th file operation of a command: the process dies there, or the operation fails with an errno.

Operations are counted where they are begun: opening for writing, renaming, making and removing names, changing modes,
allocating and syncing. Python announces most of them as audit events; the others are wrapped. Only paths below a folder count,
so that caches of libraries elsewhere do not.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
EVENTS = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
WRAPPED = ("fsync", "posix_fallocate", "ftruncate", "write")
DIED = 9  # exit status of a process that dies at an operation

Action = Callable[[str], None]


def die(_: str) -> None:
    os._exit(DIED)


def fail(number: int) -> Action:
    """The operation fails with this errno."""

    def action(path: str) -> None:
        raise OSError(number, os.strerror(number), path or None)

    return action


def break_operation(index: int, action: Action, folder: Path, for_ever: bool = False) -> Callable[[], None]:
    """A patch for `Case`: the operation `index` (from 0) under `folder` meets `action`; for_ever: and all after it.

    With an index above the number of operations nothing breaks; `count_operations` tells it.
    """

    def patch() -> None:
        _watch(folder, _Breaker(index, action, for_ever))

    return patch


def count_operations(folder: Path, log: Path) -> Callable[[], None]:
    """A patch that appends one byte to `log`, a file outside `folder`, for each operation."""

    def patch() -> None:
        descriptor, write = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.write
        _watch(folder, lambda _: write(descriptor, b"."))

    return patch


class _Breaker:
    def __init__(self, index: int, action: Action, for_ever: bool) -> None:
        self.left, self.action, self.for_ever = index, action, for_ever

    def __call__(self, path: str) -> None:
        self.left -= 1
        if self.left == -1 or (self.left < 0 and self.for_ever):
            self.action(path)


def _watch(folder: Path, on_operation: Callable[[str], Any]) -> None:
    """Calls `on_operation` at the beginning of each operation under `folder`; never from within itself."""
    prefix, busy = os.path.realpath(folder), [False]

    def check(target: Any) -> None:
        if busy[0]:
            return
        busy[0] = True
        try:
            path = _path_of(target)
            if path is not None and path.startswith(prefix):
                on_operation(path)
        finally:
            busy[0] = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITE_FLAGS and not isinstance(path, int):
                check(path)
        elif event in EVENTS:
            check(args[0])

    sys.addaudithook(hook)
    for name in WRAPPED:
        if hasattr(os, name):
            setattr(os, name, _wrap(getattr(os, name), check))
    _wrap_safetensors(check)


def _wrap(function: Callable[..., Any], check: Callable[[Any], None]) -> Callable[..., Any]:
    def wrapped(descriptor: Any, *args: Any, **options: Any) -> Any:
        check(descriptor)
        return function(descriptor, *args, **options)

    return wrapped


def _wrap_safetensors(check: Callable[[Any], None]) -> None:
    """Its files are opened and written in Rust, which announces nothing: count before and after it."""
    if "torch" in sys.modules:  # else the command, too, would have to import it
        from bertsmith import tensors

        save_file = tensors.save_file

        def wrapped(values: Any, path: Any) -> None:
            check(path)
            save_file(values, path)
            check(path)

        tensors.save_file = wrapped


def _path_of(target: Any) -> str | None:
    if isinstance(target, int):
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{target}")
        return None
    with contextlib.suppress(TypeError, ValueError):
        return os.path.abspath(os.fsdecode(target))
    return None


ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EACCES,
    errno.EROFS,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EPERM,
)
