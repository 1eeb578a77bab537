"""SVG files as PNG, drawn by resvg (the package `resvg-py`) with the fonts of the machine."""

import struct
import zlib
from functools import cache

from ... import __version__
from ...errors import UserError

PNG_MARK = b"tEXtSoftware\0bertsmith "  # in every file, behind the IHDR chunk
HEADER_END = 33
ZOOM = 2.0  # pixels for each unit of the SVG file: sharp on screens of high density
PROBE = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text x="2" y="16" font-size="16">{}</text></svg>'


def to_png(svg: bytes) -> bytes:
    """The PNG of an SVG file."""
    check_png()
    png = _draw(svg.decode(), ZOOM)
    software = PNG_MARK + __version__.encode()
    chunk = struct.pack(">I", len(software) - 4) + software + struct.pack(">I", zlib.crc32(software))
    return png[:HEADER_END] + chunk + png[HEADER_END:]


@cache
def check_png() -> None:
    """UserError unless resvg is installed and finds a font; it would leave out all text without one."""
    try:
        import resvg_py  # noqa: F401
    except ImportError:
        raise UserError(
            "out=....png needs the package resvg-py: pip install 'bertsmith[png]'; or write out=....svg or out=....html"
        ) from None
    if _draw(PROBE.format("W")) == _draw(PROBE.format("")):
        raise UserError("this machine has no font to draw a PNG with; install one (Debian: apt-get install fonts-dejavu-core), "
                        "or write out=....svg or out=....html")  # fmt: skip


def _draw(svg: str, zoom: float = 1.0) -> bytes:
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=zoom, background="#ffffff", languages=["en", "zh"]))
