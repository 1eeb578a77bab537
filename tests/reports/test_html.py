"""Pages: whatever text goes in comes out as text, and the file stands alone."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import UserError
from bertsmith.reports.html import element, format_value, join_html, render_document, section, table, tiles, write_page

HOSTILE = """<script>alert("1")</script> ' " & </td></table> <img src=x onerror=alert(1)>"""


class Reader(HTMLParser):
    """Keeps the text, and every tag that was opened."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.tags = "", []

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def reading(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


@given(st.text())
def test_any_text_comes_back_as_it_was(text):
    text = text.replace("\r", "").replace("\0", "")
    assert reading(element("p", text)).text == text
    assert reading(element("p", title=text)).tags == [("p", {"title": text})]


def test_hostile_text_is_text_wherever_it_stands():
    parts = [table([(HOSTILE, 3)], (HOSTILE, "n")), tiles([(HOSTILE, HOSTILE, HOSTILE)]), join_html(HOSTILE)]
    page = render_document(HOSTILE, HOSTILE, [section("A", *parts)]).decode()
    assert not [tag for tag, _ in reading(page).tags if tag in ("script", "img")]
    assert page.count("&lt;script&gt;") == 9  # title, heading, lead, two cells, three words of a tile, and alone


def test_a_page_has_a_title_and_links_to_its_sections():
    reader = reading(render_document("Title", "lead", [section("Filled masks"), section("Corpus")]).decode())
    assert [a["href"] for tag, a in reader.tags if tag == "a"] == ["#filled-masks", "#corpus"]
    assert [a["id"] for tag, a in reader.tags if tag == "section"] == ["filled-masks", "corpus"]


def test_numbers_are_right_aligned_and_words_are_not():
    cells = [
        a for tag, a in reading(table([("a", 1234, "15%"), ("b", 2, "1.5%")], ("x", "y", "z"))).tags if tag in ("td", "th")
    ]
    assert [cell.get("class") for cell in cells] == [None, "number", "number"] * 3


def test_numbers_are_written_as_people_do():
    assert [format_value(v) for v in (1234567, 6.42117, 0.00012345, 34567.8, None, True, "1e5")] == [
        "1,234,567", "6.421", "0.0001234", "34,568", "–", "yes", "1e5",
    ]  # fmt: skip


def test_a_folder_is_no_page(tmp_path):
    with pytest.raises(UserError, match=r"is a folder; name the page"):
        write_page(tmp_path, b"")
