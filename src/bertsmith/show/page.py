"""A page as one HTML file that stands alone: elements that escape what they are given, tables, tiles and the frame."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .. import __version__
from ..artifacts import write_whole
from ..errors import BadInput
from .style import STYLE

VOID = ("br", "meta", "path", "line", "rect", "circle", "polyline")


class Html(str):
    """Text that is markup already: only `element` and `joined` make it, so nobody's text becomes it by accident."""


def element(tag: str, /, *children: str, **attributes: str | float | None) -> Html:
    """`element("td", text, class_="number")`: plain text inside is escaped, `Html` is not, None leaves an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if tag in VOID and not children:
        return Html(f"<{tag}{written}/>")
    return Html(f"<{tag}{written}>{joined(*children)}</{tag}>")


def joined(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def section(title: str, *parts: str) -> Html:
    return element("section", element("h2", title), *parts, id=title.lower().replace(" ", "-"))


def note(text: str, kind: str = "note") -> Html:
    """A sentence under a heading; `kind` may be `warning`."""
    return element("p", text, class_=kind)


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> Html:
    """Columns whose last row is a number, or a share such as 15%, stand right-aligned, head and all."""
    rows = list(rows)
    sides = ["number" if _counts(value) else None for value in (rows[-1] if rows else head)]
    cells = [element("th", name, class_=side) for name, side in zip(head, sides, strict=True)] if head else []
    top = element("thead", element("tr", *cells)) if head else Html("")
    body = (element("tr", *(element("td", shown(v), class_=s) for v, s in zip(row, sides, strict=True))) for row in rows)
    return element("div", element("table", top, element("tbody", *body)), class_="table")


def tiles(facts: Iterable[tuple[str, Any, str]]) -> Html:
    """The few numbers a reader comes for: name, value, and a word about it."""
    made = (
        element("div", element("span", name, class_="name"), element("b", shown(value)), element("small", words))
        for name, value, words in facts
    )
    return element("div", *made, class_="tiles")


def shown(value: Any) -> str:
    """A number as people write it; anything else as it is."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else "yes" if value else "no"
    if isinstance(value, str):
        return value  # markup stays markup
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def document(title: str, lead: str, sections: Sequence[Html]) -> bytes:
    """The whole file. A page of several sections begins with links to them."""
    names = [part.partition('id="')[2].partition('"')[0] for part in sections]
    links = [element("a", name.replace("-", " "), href=f"#{name}") for name in names]
    head = element("head", element("meta", charset="utf-8"),
                   element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                   element("meta", name="color-scheme", content="light dark"),
                   element("title", title), Html(f"<style>{STYLE}</style>"))  # fmt: skip
    body = element("body", element("main",
                   element("header", element("h1", title), element("p", lead, class_="lead"),
                           element("nav", *links) if len(links) > 1 else Html("")),
                   *sections, element("footer", f"Made by bertsmith {__version__}. This file needs no network.")))  # fmt: skip
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'.encode()


def write(path: Path, page: bytes) -> None:
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name the page to write, such as out={path / 'page.html'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page)


def _counts(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[\d,.]+%", value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
