"""A parser that asserts that a page is well formed and loads nothing, and readers of colored tables."""

import re
from html.parser import HTMLParser

VOID_TAGS = ("meta", "br")


class PageParser(HTMLParser):
    """Collects text, links and ids; asserts that tags are properly nested."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.links, self.ids = [], "", [], set()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.links += [attributes[name] for name in ("href", "src") if name in attributes]
        self.ids |= {attributes["id"]} if "id" in attributes else set()
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parse_page(page):
    """The parsed page, which must be well formed and load nothing."""
    parser = PageParser()
    parser.feed(page.decode())
    assert not parser.open and "://" not in page.decode() and "<script" not in page.decode()
    assert all(link.startswith("#") and link[1:] in parser.ids for link in parser.links)
    return parser


def read_cells(page: str) -> list[str]:
    """The texts of the colored cells of a table of values, row by row."""
    return re.findall(r'class="value"[^>]*>([^<]*)</text>', page)


def read_heats(page: str) -> list[float]:
    """The opacity of each colored cell, row by row."""
    return [float(opacity) for opacity in re.findall(r'style="fill: rgba\(\d+, \d+, \d+, ([\d.]+)\)"', page)]
