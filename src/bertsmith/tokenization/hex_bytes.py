"""Text that is bytes written in hex: validation, and splitting into bytes."""

import re
from string import hexdigits

HEX_BYTES = tuple(f"{byte:02x}" for byte in range(256))
_NON_HEX = re.compile(rf"[^{hexdigits}\s]")
_HEX_BYTE = re.compile(r"\S\S")


def split_bytes(text: str) -> list[str]:
    """The bytes of a hex text, each as two lower-case digits."""
    return _HEX_BYTE.findall(text.lower())


def find_hex_error(text: str) -> str | None:
    """Why a text is not valid hex; None if it is. White space is allowed between bytes, not inside one."""
    if invalid := _NON_HEX.search(text):
        return f"{invalid[0]!r} at character {invalid.start() + 1:,} is not a hex digit"
    if odd_run := next((run for run in text.split() if len(run) % 2), None):
        return f"{len(odd_run):,} hex digits in a row are not whole bytes, which have two each"
    return None
