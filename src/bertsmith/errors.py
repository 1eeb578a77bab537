"""Exceptions that the command line turns into one-line messages."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Invalid input: the message names the value, the place and a fix. The command line prints it and exits with 2."""


SURROGATE = re.compile("[\ud800-\udfff]")  # in file names and arguments: bytes that are not UTF-8
NOT_UTF8 = "has bytes that are not UTF-8: rename the file or folder, or write the text in UTF-8"


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
}


def explain_os_error(error: OSError) -> str:
    """A failed operation of the system in one line: what, where, and a way out."""
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    what = error.strerror or str(error) or type(error).__name__
    problem = f"{' -> '.join(paths)}: {what}" if paths else what
    way_out = _WAYS_OUT.get(error.errno or 0)
    return f"{problem}; {way_out}" if way_out else problem


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch says that memory, of the host or a GPU, cannot be allocated."""
    return any(words in str(error) for words in ("can't allocate memory", "not enough memory", "out of memory"))


@contextmanager
def explain_missing_torch(caller: str = "this stage") -> Iterator[None]:
    """Turn the ImportError of an import of torch inside into a UserError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError(f"{caller} needs PyTorch: pip install 'bertsmith[train]'") from None
