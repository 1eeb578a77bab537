"""`Chart`: a drawing that is inline SVG in a page, and that `draw_file` puts into an SVG file with others."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from ... import __version__
from .axes import FULL_WIDTH, HALF_WIDTH, tag

FONT = 'system-ui, "DejaVu Sans", "Noto Sans CJK SC", "WenQuanYi Micro Hei", sans-serif'
FILE_STYLE = """
text { font-family: FONT; font-size: 12px; fill: #63676c; } .title { font-size: 15px; font-weight: 600; fill: #1b1c1d; }
.heading { font-size: 20px; font-weight: 600; fill: #1b1c1d; } text.value { fill: #1b1c1d; }
.end { text-anchor: end; fill: #3a3d40; } .page { fill: #ffffff; } .grid { stroke: #ebecee; } .axis { stroke: #dfe0e2; }
.bridge { stroke: #c9ccd0; stroke-width: 2; } .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.one { stroke: #2a6fd0; fill: #2a6fd0; } .two { stroke: #d9622b; fill: #d9622b; } .three { stroke: #178a63; fill: #178a63; }
.four { stroke: #8a57c2; fill: #8a57c2; } .five { stroke: #b98a00; fill: #b98a00; } .six { stroke: #c8447c; fill: #c8447c; }
.seven { stroke: #2c9aa8; fill: #2c9aa8; } .eight { stroke: #7a6652; fill: #7a6652; }
.hollow { fill: #ffffff; stroke-width: 2; } .curve.curve { fill: none; } .dot { stroke: #ffffff; stroke-width: 1.5; }
.bar { fill: #2a6fd0; } .level { stroke: #63676c; stroke-width: 1.5; stroke-dasharray: 6 5; }
.arm { stroke-width: 3; stroke-linecap: round; opacity: 0.55; } .panel { fill: #f7f7f5; stroke: #dfe0e2; }
.cell { stroke: #dfe0e2; fill: none; } .link { visibility: hidden; }
.chip { fill: none; }
.masked { fill: #d7e6fb; } .random { fill: #fde0cf; } .unchanged { fill: #d3f0e3; } .unknown { fill: #fde0cf; }
""".strip().replace("FONT", FONT)
CHAR_WIDTH = 6.9  # approximate width of a character of 12 px
SVG_MARK = b"<metadata>bertsmith "  # in every file
MARGIN, GAP = 24, 34  # around the charts of a file, and between them


class LegendEntry(NamedTuple):
    """A name with its line (the class of a stroke), its dot, or both."""

    name: str
    line: str | None = None
    dot: str | None = None


class Chart(Markup):
    """A `<figure>` of SVG shapes below a title and a legend; it is markup, and keeps its parts for a file.

    fills_page: the drawing is as wide as the page, else about as wide as it is.
    """

    caption: str  # the title; `title` is a method of strings
    subtitle: str
    shapes: tuple[Markup, ...]
    width: float
    height: float
    top: float  # room for shapes above y = 0
    legend: tuple[LegendEntry, ...]

    def __new__(
        cls, title: str, shapes: Iterable[Markup], width: float, height: float, top: float = 0.0,
        legend: Sequence[LegendEntry] = (), subtitle: str = "", fills_page: bool = True,
    ) -> "Chart":  # fmt: skip
        shapes = tuple(shapes)
        limit = None if fills_page else f"max-width: {1.2 * width:g}px"
        svg = tag("svg", *shapes, viewBox=f"0 {-top:g} {width:g} {height + top:g}", role="img", aria_label=title, style=limit)
        caption = tag("figcaption", title, tag("small", subtitle) if subtitle else "")
        entries = [_legend_html(entry) for entry in legend]
        above = tag("div", *entries, class_="legend") if entries else ""
        chart = super().__new__(cls, tag("figure", caption, above, svg, class_="wide" if width > 1.5 * HALF_WIDTH else None))
        chart.caption, chart.subtitle, chart.shapes = title, subtitle, shapes
        chart.width, chart.height, chart.top, chart.legend = width, height, top, tuple(legend)
        return chart


def empty_chart(title: str, text: str, width: float = FULL_WIDTH) -> Chart:
    """The title, and a sentence in place of the drawing."""
    return Chart(title, [tag("text", text, x=0, y=16)], width, 28)


def text_width(text: str, char_width: float = CHAR_WIDTH) -> float:
    """About how wide a text is drawn; Chinese characters are twice as wide as Latin ones."""
    return char_width * sum(1.8 if unicodedata.east_asian_width(char) in "WF" else 1.0 for char in text)


def svg_file(title: str, shapes: Iterable[Markup], width: float, height: float) -> bytes:
    """A standalone SVG file with a white background and its own style sheet."""
    background = tag("rect", x=0, y=0, width=width, height=height, class_="page")
    svg = tag("svg", tag("metadata", f"bertsmith {__version__}"), tag("style", Markup(FILE_STYLE)), background, *shapes, xmlns="http://www.w3.org/2000/svg",
              viewBox=f"0 0 {width:g} {height:g}", width=width, height=height, role="img", aria_label=title)  # fmt: skip
    return f"{svg}\n".encode()


def draw_file(title: str, parts: Iterable[tuple[str, Sequence[Chart]]]) -> bytes:
    """An SVG file of charts below their headings: side by side where they fit, else below each other.

    parts: (heading, charts); an empty heading is left out.
    """
    shapes = [tag("text", title, x=MARGIN, y=MARGIN + 16, class_="heading")]
    y, right = MARGIN + 40.0, 0.0
    for heading, charts in parts:
        if heading:
            shapes.append(tag("text", heading, x=MARGIN, y=y + 14, class_="title"))
            y += 30
        x, bottom = float(MARGIN), y
        for chart in charts:
            if x > MARGIN and x + chart.width > MARGIN + FULL_WIDTH:
                x, y = float(MARGIN), bottom + GAP
            bottom_of_chart = y + _draw_chart(shapes, chart, x, y)
            bottom, right = max(bottom, bottom_of_chart), max(right, x + chart.width)
            x += chart.width + GAP
        y = bottom + GAP
    width = max(right, MARGIN + text_width(title, 11.5)) + MARGIN
    return svg_file(title, shapes, width, y - GAP + MARGIN)


def _draw_chart(shapes: list[Markup], chart: Chart, x: float, y: float) -> float:
    """Adds the shapes of a chart at (x, y); returns its height, with title and legend."""
    shapes.append(tag("text", chart.caption, x=x, y=y + 14, class_="title"))
    if chart.subtitle:
        shapes.append(tag("text", chart.subtitle, x=x + text_width(chart.caption, 8.7) + 8, y=y + 14))
    height, left = 24.0, x
    for entry in chart.legend:
        entry_width = 34 + text_width(entry.name) + 22
        if left > x and left + entry_width > x + chart.width:
            left, height = x, height + 18
        marks = _legend_marks(entry)
        shapes.append(tag("g", *marks, transform=f"translate({left:g} {y + height:g})"))
        shapes.append(tag("text", entry.name, x=left + 34, y=y + height + 10))
        left += entry_width
    height += (22 if chart.legend else 0) + chart.top
    shapes.append(tag("g", *chart.shapes, transform=f"translate({x:g} {y + height:g})"))
    return height + chart.height


def _legend_marks(entry: LegendEntry) -> list[Markup]:
    marks = [tag("line", x1=0, x2=28, y1=6, y2=6, class_=entry.line)] if entry.line else []
    return [*marks, tag("circle", cx=14, cy=6, r=4, class_=entry.dot)] if entry.dot else marks


def _legend_html(entry: LegendEntry) -> Markup:
    return tag("span", tag("svg", *_legend_marks(entry), viewBox="0 0 28 12", aria_hidden="true"), entry.name)
