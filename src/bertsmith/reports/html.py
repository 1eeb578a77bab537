"""Self-contained HTML pages: escaped elements, tables and tiles, and one style sheet for light, dark and print."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .. import __version__
from ..artifacts import write_atomic
from ..errors import UserError

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f7f7f5; --card: #ffffff; --ink: #1b1c1d; --soft: #63676c; --faint: #dfe0e2; --grid: #ebecee;
  --one: #2a6fd0; --two: #d9622b; --three: #178a63; --four: #8a57c2;
  --five: #b98a00; --six: #c8447c; --seven: #2c9aa8; --eight: #7a6652;
  --masked: #d7e6fb; --masked-ink: #174e9c; --swapped: #fde0cf; --swapped-ink: #97400f;
  --kept: #d3f0e3; --kept-ink: #0d6145; --warn: #fff3d6; --warn-ink: #6d4a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #151617; --card: #1e2022; --ink: #e9eaec; --soft: #a0a5ab; --faint: #373a3d; --grid: #2b2e30;
    --one: #6aa5f4; --two: #f0905f; --three: #4fc498; --four: #bb93e8;
    --five: #e0b93c; --six: #f07fae; --seven: #63c9d6; --eight: #b7a28a;
    --masked: #1d3a63; --masked-ink: #b9d6ff; --swapped: #59301a; --swapped-ink: #ffc9a8;
    --kept: #153f30; --kept-ink: #9fe5c8; --warn: #40330f; --warn-ink: #ffdf94;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); font-size: 16px; line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC", "Hiragino Sans GB", "Microsoft YaHei",
    "Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Micro Hei", sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 3rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.015em; }
h2 { font-size: 1.25rem; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .3rem 0 .8rem; }
.lead, .note, footer { color: var(--soft); }
.lead { margin: 0; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; margin-top: .9rem; }
nav a { color: var(--one); text-decoration: none; }
nav a:hover { text-decoration: underline; }
section {
  background: var(--card); border: 1px solid var(--faint); border-radius: 12px; padding: 1.4rem 1.5rem; margin: 1.5rem 0;
}
footer { font-size: .85rem; margin-top: 2rem; }
.warning { background: var(--warn); color: var(--warn-ink); border-radius: 8px; padding: .6rem .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11.5rem, 1fr)); gap: .9rem; margin: .8rem 0 1rem; }
.tiles div { border: 1px solid var(--faint); border-radius: 10px; padding: .7rem .9rem; display: flex; flex-direction: column; }
.tiles .name, .tiles small { color: var(--soft); font-size: .82rem; line-height: 1.35; }
.tiles b { font-size: 1.5rem; line-height: 1.35; font-variant-numeric: tabular-nums; font-weight: 650; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: .5rem 2rem; align-items: start; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th { text-align: left; color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--faint); }
th, td { padding: .35rem .8rem .35rem 0; vertical-align: top; overflow-wrap: anywhere; }
td { border-bottom: 1px solid var(--grid); }
tr:last-child td { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.number { text-align: right; }
.number + td:not(.number) { padding-left: .6rem; }
.narrow { max-width: 34rem; }
figure { margin: 1rem 0 .4rem; }
figcaption { font-weight: 600; margin-bottom: .2rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; color: var(--soft); font-size: .85rem; margin: 0 0 .3rem; }
.legend svg { width: 1.7rem; height: .7rem; margin-right: .4rem; vertical-align: middle; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
.legend svg { display: inline-block; }
svg text { fill: var(--soft); font-size: 12px; font-family: inherit; font-variant-numeric: tabular-nums; }
svg text.value { fill: var(--ink); }
.grid { stroke: var(--grid); } .axis { stroke: var(--faint); }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.one { stroke: var(--one); } .two { stroke: var(--two); } .three { stroke: var(--three); } .four { stroke: var(--four); }
.five { stroke: var(--five); } .six { stroke: var(--six); } .seven { stroke: var(--seven); } .eight { stroke: var(--eight); }
.dot { stroke: var(--card); stroke-width: 1.5; }
.dot.one, .bar { fill: var(--one); }
.dot.two { fill: var(--two); } .dot.three { fill: var(--three); } .dot.four { fill: var(--four); }
.dot.five { fill: var(--five); } .dot.six { fill: var(--six); } .dot.seven { fill: var(--seven); }
.dot.eight { fill: var(--eight); }
.level { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 6 5; }
.track { background: var(--grid); border-radius: 4px; min-width: 5rem; height: .55rem; margin-top: .5rem; }
.track span { display: block; height: 100%; border-radius: 4px; background: var(--one); }
.sample { border-top: 1px solid var(--faint); padding: .9rem 0 .6rem; break-inside: avoid; }
.sample header { display: flex; flex-wrap: wrap; gap: .3rem .9rem; align-items: baseline; }
.sample header { color: var(--soft); font-size: .85rem; }
.pill { border: 1px solid var(--faint); border-radius: 99px; padding: 0 .65rem; color: var(--ink); }
.text { display: flex; gap: .8rem; margin: .45rem 0; }
.text > b { flex: none; width: 1.5rem; height: 1.5rem; border-radius: 6px; background: var(--grid); color: var(--soft);
  font-size: .8rem; text-align: center; line-height: 1.5rem; margin-top: .2rem; }
.text > div { line-height: 2.35; overflow-wrap: anywhere; }
.word { display: inline; border-bottom: 1px solid var(--faint); padding-bottom: 2px; }
.inside { font-size: .68em; color: var(--soft); }
.special { color: var(--soft); font-size: .78rem; }
mark { white-space: nowrap; border-radius: 5px; padding: .08rem .28rem; color: inherit; background: none; }
mark.masked { background: var(--masked); color: var(--masked-ink); }
mark.swapped { background: var(--swapped); color: var(--swapped-ink); }
mark.kept { background: var(--kept); color: var(--kept-ink); }
mark .inside { color: inherit; opacity: .75; }
ruby { ruby-position: under; ruby-align: center; }
rt { font-size: .68rem; color: var(--soft); line-height: 1.2; }
.key { display: flex; flex-wrap: wrap; gap: .4rem 1.6rem; margin: .6rem 0 .9rem; font-size: .9rem; color: var(--soft); }
.answers { margin: .2rem 0 1.1rem; }
.answers .question { font-weight: 600; margin: 0 0 .2rem; }
.answers .table { margin-bottom: .7rem; }
.answers table { width: auto; } .answers .track { width: 12rem; }
.whisker { width: 15rem; max-width: 100%; margin-top: .15rem; }
.arm { stroke-width: 3; stroke-linecap: round; opacity: .55; }
.scale { display: flex; justify-content: space-between; width: 15rem; max-width: 100%; font-variant-numeric: tabular-nums; }
tr.few td { color: var(--soft); } tr.few .whisker { opacity: .45; }
tr.best td { font-weight: 600; } b.best { color: var(--three); }
td.group { font-weight: 600; padding-top: .9rem; }
.heat { width: auto; } .heat td, .heat th { text-align: right; padding: .35rem .6rem; font-variant-numeric: tabular-nums; }
.heat th:first-child { text-align: left; white-space: nowrap; }
.upright thead th:not(:first-child) { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; padding: .3rem; }
.heat td.wrong { background: color-mix(in srgb, var(--two) calc(var(--heat) * 1%), transparent); }
.heat td.right { background: color-mix(in srgb, var(--three) calc(var(--heat) * 1%), transparent); }
.findings { margin: .4rem 0 0; padding-left: 1.2rem; } .findings li { margin: .25rem 0; }
.mistake { border-top: 1px solid var(--faint); padding: .8rem 0 .6rem; break-inside: avoid; }
.mistake p { margin: .25rem 0; overflow-wrap: anywhere; } .mistake mark { white-space: normal; }
.mistake .verdict { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .93rem; }
.mistake small { color: var(--soft); overflow-wrap: anywhere; }
main:has(.race) { max-width: 88rem; } main:has(.race) .pair td { white-space: nowrap; }
main:has(.race) .pair { grid-template-columns: repeat(auto-fit, minmax(min(31rem, 100%), 1fr)); }
.race table { font-size: .86rem; } .race th, .race td { white-space: nowrap; padding-right: 1rem; }
.race small { color: var(--soft); }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem 1.2rem; }
.panels figure { margin: 0; } .panels figcaption small { color: var(--soft); font-weight: 400; margin-left: .5rem; }
.panel { fill: var(--page); stroke: var(--faint); }
.point .dot { fill-opacity: .78; stroke-width: .8; } .point .link { visibility: hidden; stroke-width: 1.5; }
.point:hover .link { visibility: visible; } .point:hover .dot { fill-opacity: 1; stroke: var(--ink); stroke-width: 2; }
.context { text-align: right; color: var(--soft); } .context + td { white-space: nowrap; font-weight: 600; }
details > summary { cursor: pointer; color: var(--one); margin: .6rem 0; }
@media print {
  body { background: #fff; font-size: 11pt; } main { padding: 0; max-width: none; } nav { display: none; }
  section { border: 0; padding: 0; } * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
""".strip()


VOID_TAGS = ("br", "meta", "path", "line", "rect", "circle", "polyline")


class Html(str):
    """A string that is already markup. Only `element` and `join_html` create it from text, so all other text gets escaped."""


def element(tag: str, /, *children: str, **attributes: str | float | None) -> Html:
    """`element("td", text, class_="number")`: escapes plain text but not `Html`; attributes that are None are omitted."""
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_format_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if tag in VOID_TAGS and not children:
        return Html(f"<{tag}{rendered}/>")
    return Html(f"<{tag}{rendered}>{join_html(*children)}</{tag}>")


def join_html(*children: str) -> Html:
    """Concatenates children, escaping plain text."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def section(title: str, *children: str) -> Html:
    """A section with a heading; its id is the title in kebab case."""
    return element("section", element("h2", title), *children, id=title.lower().replace(" ", "-"))


def note(text: str, css_class: str = "note") -> Html:
    """A paragraph in small print; `css_class` may be `warning`."""
    return element("p", text, class_=css_class)


def table(rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> Html:
    """Columns whose last row is a number or a percentage are right-aligned, header included."""
    rows = list(rows)
    classes = ["number" if _is_numeric(value) else None for value in (rows[-1] if rows else header)]
    cells = [element("th", name, class_=css_class) for name, css_class in zip(header, classes, strict=True)] if header else []
    thead = element("thead", element("tr", *cells)) if header else Html("")
    body = (
        element("tr", *(element("td", format_value(v), class_=s) for v, s in zip(row, classes, strict=True))) for row in rows
    )
    return element("div", element("table", thead, element("tbody", *body)), class_="table")


def tiles(facts: Iterable[tuple[str, Any, str]]) -> Html:
    """Key figures as tiles: (name, value, description)."""
    rendered = (
        element("div", element("span", name, class_="name"), element("b", format_value(value)), element("small", description))
        for name, value, description in facts
    )
    return element("div", *rendered, class_="tiles")


def format_value(value: Any) -> str:
    """Numbers with thousands separators or four significant digits, booleans as yes and no, None as a dash."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else "yes" if value else "no"
    if isinstance(value, str):
        return value  # keeps `Html` as markup
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def render_document(title: str, subtitle: str, sections: Sequence[Html]) -> bytes:
    """A complete HTML file; with several sections it starts with links to them."""
    ids = [html.partition('id="')[2].partition('"')[0] for html in sections]
    links = [element("a", id_.replace("-", " "), href=f"#{id_}") for id_ in ids]
    head = element("head", element("meta", charset="utf-8"),
                   element("meta", name="viewport", content="width=device-width, initial-scale=1"),
                   element("meta", name="color-scheme", content="light dark"),
                   element("title", title), Html(f"<style>{STYLE}</style>"))  # fmt: skip
    body = element("body", element("main",
                   element("header", element("h1", title), element("p", subtitle, class_="lead"),
                           element("nav", *links) if len(links) > 1 else Html("")),
                   *sections, element("footer", f"Made by bertsmith {__version__}. This file needs no network.")))  # fmt: skip
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'.encode()


def write_page(path: Path, page: bytes) -> None:
    """Writes the file atomically, creating its folder; a folder as `path` raises UserError."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name the page to write, such as out={path / 'page.html'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page)


def _is_numeric(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[\d,.]+%", value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format_attribute(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
