"""Exceptions that the command line turns into one-line messages."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Invalid input: the message names the value, the place and a fix. The command line prints it and exits with 2."""


class Interrupted(Exception):
    """A signal stopped the run; everything done so far is on disk, so that the same command resumes it."""


@contextmanager
def explain_missing_torch(caller: str = "this stage") -> Iterator[None]:
    """Turn the ImportError of an import of torch inside into a UserError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UserError(f"{caller} needs PyTorch: pip install 'bertsmith[train]'") from None
