"""Exceptions that the command line turns into one-line messages."""


class UserError(ValueError):
    """Invalid input: the message names the value, the place and a fix. The command line prints it and exits with 2."""


class Interrupted(Exception):
    """A signal stopped the run; everything done so far is on disk, so that the same command resumes it."""
