"""HTML pages: all text is escaped, and the file is self-contained."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from bertsmith.errors import UserError
from bertsmith.reports.charts.axes import tag
from bertsmith.reports.html import format_value, note, render, render_document, section, write_page

HOSTILE = """<script>alert("1")</script> ' " & </td></table> <img src=x onerror=alert(1)>"""


class TextParser(HTMLParser):
    """Collects the text and all opening tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.tags = "", []

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def parse(page: str) -> TextParser:
    parser = TextParser()
    parser.feed(str(page))
    return parser


@given(st.text())
def test_text_of_a_page_round_trips(text):
    text = text.replace("\r", "").replace("\0", "")
    assert parse(tag("p", text)).text == text
    assert parse(tag("p", "", title=text)).tags == [("p", {"title": text})]
    assert parse(note(text)).text == f"{text}\n"


def test_document_escapes_hostile_text_everywhere():
    table = render("macros", "table", rows=[(HOSTILE, 3)], header=(HOSTILE, "n"))
    tiles = render("macros", "tiles", facts=[(HOSTILE, HOSTILE, HOSTILE)])
    sections = [section(HOSTILE, table, tiles, note(HOSTILE)), section("Other")]
    page = render_document(HOSTILE, HOSTILE, sections).decode()
    assert not [tag for tag, _ in parse(page).tags if tag in ("script", "img")]
    # title, heading, lead; link, id and heading of a section; two cells, three parts of a tile, a note
    assert len(re.findall("&lt;script&gt;", page)) == 13


def test_render_rejects_missing_and_unknown_values():
    with pytest.raises(UndefinedError, match="'text' was not provided"):
        render("macros", "note")
    with pytest.raises(TypeError, match="txt"):
        render("macros", "note", txt="a")


def test_document_links_to_its_sections():
    parser = parse(render_document("Title", "lead", [section("Filled masks"), section("Corpus")]).decode())
    assert [a["href"] for tag, a in parser.tags if tag == "a"] == ["#filled-masks", "#corpus"]
    assert [a["id"] for tag, a in parser.tags if tag == "section"] == ["filled-masks", "corpus"]


def test_table_right_aligns_numbers_only():
    table = render("macros", "table", rows=[("a", 1234, "15%"), ("b", 2, "1.5%")], header=("x", "y", "z"))
    cells = [a for tag, a in parse(table).tags if tag in ("td", "th")]
    assert [cell.get("class") for cell in cells] == [None, "number", "number"] * 3


def test_format_value():
    assert [format_value(v) for v in (1234567, 6.42117, 0.00012345, 34567.8, None, True, "1e5")] == [
        "1,234,567", "6.421", "0.0001234", "34,568", "–", "yes", "1e5",
    ]  # fmt: skip


def test_write_page_rejects_folder(tmp_path):
    with pytest.raises(UserError, match=r"is a folder; give a file"):
        write_page(tmp_path, b"")


def test_table_right_aligns_differences_and_intervals():
    row = ("+7.3%", "−0.113", "+7.3% to +16.3%", "69.0 – 79.0%", "< 0.001", "0.609")
    assert render("macros", "table", rows=[row]).count('class="number"') == len(row)
    assert 'class="number"' not in render("macros", "table", rows=[("2 to go", "– – –", "up to 16", "17–31")])
