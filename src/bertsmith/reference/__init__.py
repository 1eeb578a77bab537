"""The reference pages, docs/configuration.md and docs/python.md, which `make schema` writes.

They come from the schema and from docstrings, which are read from the source with `ast`: torch is not imported.
"""

from pathlib import Path
from typing import Any

from .configuration import generate_configuration
from .markdown import PACKAGE
from .python import Functions, generate_python

DOCS = PACKAGE.parents[1] / "docs"


def generate_pages(schema: dict[str, Any], functions: Functions) -> dict[Path, str]:
    """The text of the reference pages by file."""
    return {DOCS / "configuration.md": generate_configuration(schema), DOCS / "python.md": generate_python(schema, functions)}
