"""Exceptions that the command line turns into one-line messages."""

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Invalid input: the message names the value, the place and a fix. The command line prints it and exits with 2."""


SURROGATE = re.compile("[\ud800-\udfff]")  # in file names and arguments: bytes that are not UTF-8
NOT_UTF8 = (
    "has bytes that are not UTF-8: rename the file or folder, or write the text in UTF-8"
    if (ENCODING := sys.getfilesystemencoding()) == "utf-8"
    else f"is not in the encoding of file names and arguments, {ENCODING} here: unset PYTHONUTF8, or set LC_ALL=C.UTF-8"
)


class Interrupted(Exception):
    """A signal stopped the run; everything done so far is on disk, so that the same command resumes it."""


_WAYS_OUT = {
    errno.ENOSPC: "free some space, and run the same command again",
    errno.EDQUOT: "free some space of your quota, and run the same command again",
    errno.EFBIG: "the file system or `ulimit -f` forbids larger files: raise the limit, or write to another place",
    errno.EMFILE: "raise the limit of this process (`ulimit -n 4096`)",
    errno.ENFILE: "close other programs, or raise the system's limit (`sysctl fs.file-max`)",
    errno.ENOMEM: "use smaller inputs, a smaller model or fewer workers",
    errno.EAGAIN: "the system starts no more processes or threads: use fewer workers, or raise `ulimit -u`",
    errno.EROFS: "write to another place",
    errno.EACCES: "check its permissions, or choose another place",
    errno.EPERM: "check its permissions, or choose another place",
    errno.ELOOP: "it is a loop of links: give the path of a file or folder",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.EISDIR: "it is a folder: give a file",
    errno.ENOENT: "check the path",
    errno.EIO: "the disk or its connection fails (`dmesg` says more): use another place",
    errno.EBUSY: "another program uses it: end that program, or choose another place",
    errno.ETXTBSY: "another program uses it: end that program, or choose another place",
    errno.ESTALE: "its file system was mounted anew: change to the folder again, and run the same command again",
    errno.ENXIO: "it is a pipe, a socket or a device that is absent: give a regular file",
    errno.ENODEV: "its file system cannot do this: use another place",
    errno.EOPNOTSUPP: "its file system cannot do this: use another place",
    errno.ENOTEMPTY: "another program writes there: choose another place",
    errno.EEXIST: "another program writes there: choose another place",
}
_WAY_OUT = "check the path and its file system, or choose another place"


def explain_os_error(error: OSError) -> str:
    """A failed operation of the system in one line: what, where, and a way out."""
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    return f"{' -> '.join(paths)}: {explain_reason(error)}" if paths else explain_reason(error)


def explain_reason(error: OSError) -> str:
    """Why an operation failed, without its place, and a way out."""
    return f"{error.strerror or str(error) or type(error).__name__}; {_WAYS_OUT.get(error.errno or 0, _WAY_OUT)}"


def explain_limit(error: BaseException) -> str | None:
    """A limit of the system in one line: what, where, and a way out; None for any other exception."""
    if isinstance(error, OSError):
        return explain_os_error(error)
    if isinstance(error, UnicodeEncodeError) and error.encoding == ENCODING != "utf-8":  # a file name, in an old locale
        return f"{error.object[:200]!a} {NOT_UTF8}"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply; give one with fewer levels"
    if any(words in str(error) for words in ("can't start new thread", "ThreadPoolBuildError")):
        return "the system starts no more threads; use fewer workers, raise `ulimit -u`, or make more memory available"
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        reason = f" ({error})" if str(error) else ""
        return f"not enough memory{reason}; use smaller inputs, a smaller model, smaller batches or fewer workers"
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a library says that memory, of the host or a GPU, cannot be allocated."""
    if isinstance(error, SystemError):  # what Python makes of C code whose allocation failed
        return "without exception set" in str(error) or "without setting an exception" in str(error)
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


@contextmanager
def explain_missing_torch(caller: str = "this stage") -> Iterator[None]:
    """Turn the ImportError of an import of torch inside into a UserError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError(f"{caller} needs PyTorch: pip install 'bertsmith[train]'") from None
