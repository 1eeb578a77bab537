"""Bytes written in hex: which text is that, and which bytes it holds."""

import re
from string import hexdigits

HEX_BYTES = tuple(f"{byte:02x}" for byte in range(256))
_NON_HEX = re.compile(rf"[^{hexdigits}\s]")
_HEX_BYTE = re.compile(r"\S\S")


def split_bytes(text: str) -> list[str]:
    """The bytes of a text, each a word."""
    return _HEX_BYTE.findall(text.lower())


def find_hex_error(text: str) -> str | None:
    """Why a text is not bytes in hex; None if it is. White space may stand between bytes, not inside one."""
    if wrong := _NON_HEX.search(text):
        return f"{wrong[0]!r}, its character {wrong.start() + 1:,}, is no hex digit"
    if odd := next((run for run in text.split() if len(run) % 2), None):
        return f"{len(odd):,} digits are not whole bytes, which have two each"
    return None
