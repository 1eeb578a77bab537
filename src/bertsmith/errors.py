"""The one error a user should meet: it says what is wrong, where, and the way out."""


class UserError(ValueError):
    """Something a person gave cannot be used; the command line prints it as one line and exits with 2."""


class Interrupted(Exception):
    """A signal asked the work to stop; everything done so far is on disk."""
