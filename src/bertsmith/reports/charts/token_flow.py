"""`TokenFlow`: tokens in reading order with a color and small print each, as HTML that wraps, or drawn for a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from .axes import FULL_WIDTH, tag
from .chart import Chart, text_width
from .heat_map import heat_color

LINE_HEIGHT, CHIP_HEIGHT = 46, 22
TOKEN_SIZE, PRINT_SIZE = 14, 10  # font sizes
MAX_SHOWN = 40  # characters of a token


class FlowToken(NamedTuple):
    """A token; `heat` from -1 to 1 colors it, or `style`: masked, random, unchanged, unknown."""

    text: str
    below: str = ""  # in small print
    heat: float = 0.0
    style: str = ""
    joins: bool = False  # it continues the word before it
    tooltip: str = ""


@dataclass(frozen=True)
class TokenFlow:
    """Tokens in lines. A template shows the object as HTML; `draw` is the same as a chart."""

    title: str
    tokens: Sequence[FlowToken]

    def __html__(self) -> Markup:
        return tag("div", *(_to_html(token) for token in self.tokens), class_="flow")

    def draw(self, width: float = FULL_WIDTH) -> Chart:
        shapes, x, y = [], 0.0, 0.0
        for token in self.tokens:
            text = token.text[:MAX_SHOWN]
            chip = text_width(text, 0.575 * TOKEN_SIZE) + 10
            box = max(chip, text_width(token.below, 0.575 * PRINT_SIZE))
            if x and x + box > width:
                x, y = 0.0, y + LINE_HEIGHT
            left = x + (box - chip) / 2
            color = f"fill: {heat_color(token.heat)}" if token.heat else None
            shapes.append(tag("rect", tag("title", token.tooltip or token.text), x=left, y=y, width=chip,
                              height=CHIP_HEIGHT, rx=5, class_=f"chip {token.style}".strip(), style=color))  # fmt: skip
            shapes.append(tag("text", text, x=x + box / 2, y=y + 16, text_anchor="middle", class_="value",
                              style=f"font-size: {TOKEN_SIZE}px"))  # fmt: skip
            if token.below:
                shapes.append(tag("text", token.below, x=x + box / 2, y=y + CHIP_HEIGHT + 12, text_anchor="middle",
                                  style=f"font-size: {PRINT_SIZE}px"))  # fmt: skip
            x += box + (1 if token.joins else 5)
        return Chart(self.title, shapes, width, y + LINE_HEIGHT)


def _to_html(token: FlowToken) -> Markup:
    color = f"background: {heat_color(token.heat)}" if token.heat else None
    mark = tag("mark", token.text, class_=token.style or None, style=color)
    parts = [mark, tag("small", token.below)] if token.below else [mark]
    return tag("span", *parts, class_="token joins" if token.joins else "token", title=token.tooltip or None)
