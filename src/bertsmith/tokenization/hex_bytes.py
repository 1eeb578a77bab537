"""Bytes written in hex: which text is that, and which bytes it holds."""

import re
from string import hexdigits

BYTES = tuple(f"{byte:02x}" for byte in range(256))
_WRONG = re.compile(rf"[^{hexdigits}\s]")
_TWO = re.compile(r"\S\S")


def words(text: str) -> list[str]:
    """The bytes of a text, each a word."""
    return _TWO.findall(text.lower())


def fault(text: str) -> str | None:
    """Why a text is not bytes in hex; None if it is. White space may stand between bytes, not inside one."""
    if wrong := _WRONG.search(text):
        return f"{wrong[0]!r}, its character {wrong.start() + 1:,}, is no hex digit"
    if odd := next((run for run in text.split() if len(run) % 2), None):
        return f"{len(odd):,} digits are not whole bytes, which have two each"
    return None
