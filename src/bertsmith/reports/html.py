"""Self-contained HTML pages from the jinja2 templates in templates/: no script, no network, all text escaped.

A page is a title and sections. A template file has one macro per section of its page; the macro's parameters are what the
section shows. Python computes these values; the template has the markup:

    Section("Scores", render("evaluation", "scores", facts=facts, findings=findings, rows=rows))
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from .. import __version__
from ..errors import UserError
from ..reading import open_regular
from ..writing import write_atomic
from .charts import PNG_MARK, SVG_MARK, Chart, draw_file

TEMPLATES = Path(__file__).parent / "templates"
GENERATOR = b'<meta name="generator" content="bertsmith '  # in every page
NUMBER = r"[+−]?[\d,.]+"  # with either sign, in a table cell


@dataclass(frozen=True)
class Section:
    """A part of a page below a heading of its own; `charts` are what a picture file shows of it."""

    title: str
    body: Markup
    charts: tuple[Chart, ...] = ()

    @property
    def id(self) -> str:
        """The title in kebab case, for links within the page."""
        return re.sub(r"\s+", "-", self.title.lower())


def render(template: str, macro: str, **context: Any) -> Markup:
    """The markup of one macro of templates/{template}.html.j2; its parameters are the keys of `context`."""
    return Markup(getattr(_environment().get_template(f"{template}.html.j2").module, macro)(**context))


def render_document(title: str, subtitle: str, sections: Sequence[Section]) -> bytes:
    """A complete HTML file; with several sections it starts with links to them."""
    page = _environment().get_template("base.html.j2")
    return page.render(title=title, subtitle=subtitle, sections=sections, version=__version__).encode()


def render_frame(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The page in a frame of its own, as notebooks show it: its style does not touch the notebook's."""
    return frame_page(render_document(title, subtitle, sections).decode())


def frame_page(page: str) -> str:
    """A complete HTML page in an <iframe>."""
    return f'<iframe srcdoc="{escape(page)}" style="width:100%;height:34rem;border:0"></iframe>'


def section(title: str, *parts: Markup) -> Section:
    """A section of parts that are markup already."""
    return Section(title, Markup("").join(parts))


def note(text: str) -> Markup:
    """A paragraph in small print."""
    return render("macros", "note", text=text)


def render_picture(title: str, sections: Sequence[Section]) -> bytes:
    """An SVG file of the sections' charts; UserError for a page that has none."""
    parts = [(section.title if len(sections) > 1 else "", section.charts) for section in sections if section.charts]
    if not parts:
        raise UserError("this page has tables and no chart; write out=....html")
    return draw_file(title, parts)


def is_page(path: Path) -> bool:
    """Whether a file is a page that `render_document` made, or a picture of this package."""
    with open_regular(path) as file:
        start = file.read(1 << 12)
    return any(mark in start for mark in (GENERATOR, SVG_MARK, PNG_MARK))


def write_page(path: Path, page: bytes) -> None:
    """Writes the file atomically, creating its folder; a folder as `path` raises UserError."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file, such as out={path / 'page.html'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page)


def format_value(value: Any) -> str:
    """Numbers with thousands separators or four significant digits, booleans as yes and no, None as a dash."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else "yes" if value else "no"
    if isinstance(value, str):
        return value  # `Markup` stays markup
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@cache
def _environment() -> Environment:
    return build_environment(TEMPLATES)


def build_environment(*folders: Path) -> Environment:
    """Templates of these folders, with all text escaped."""
    environment = Environment(
        loader=FileSystemLoader(folders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["value"] = format_value
    environment.tests["numeric"] = _is_numeric
    return environment


def _is_numeric(value: Any) -> bool:
    """Whether a table column with this cell is aligned right: numbers, percentages, signed differences, intervals."""
    if isinstance(value, str):
        return re.fullmatch(rf"{NUMBER}%|[+−]{NUMBER}%?|0\.\d+|{NUMBER}%? (to|–) {NUMBER}%?|< {NUMBER}", value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)
