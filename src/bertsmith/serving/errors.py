"""Errors that a client sees: an HTTP status and a message that says what is wrong and what to do."""

from typing import ClassVar


class ServeError(Exception):
    """Answered with `status`; `kind` is the type of the error in the words of each API."""

    status: ClassVar[int] = 400
    kind: ClassVar[str] = "validation"

    def __init__(self, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message, self.retry_after = message, retry_after


class InvalidRequest(ServeError):
    """The body, or a value in it, cannot be used."""


class Unauthorized(ServeError):
    status, kind = 401, "unauthorized"


class UnknownModel(ServeError):
    status, kind = 404, "not_found"


class Unsupported(ServeError):
    """The model, or none of the models, can do this: the path of its answer does not exist."""

    status, kind = 404, "unsupported"


class TooLarge(ServeError):
    status, kind = 413, "too_large"


class Timeout(ServeError):
    status, kind = 504, "timeout"


class SlowClient(ServeError):
    status, kind = 408, "timeout"


class TooManyRequests(ServeError):
    status, kind = 429, "rate_limit"


class Overloaded(ServeError):
    status, kind = 503, "overloaded"


class InternalError(ServeError):
    status, kind = 500, "backend"


class ClientGone(Exception):
    """The client closed the connection before its answer was ready."""
