"""Words and their vectors: files of every usual format, neighbours, analogies and how well they agree with people."""

from .files import FORMATS, Format, read, write
from .table import of_table
from .vectors import Vectors

__all__ = ["FORMATS", "Format", "Vectors", "of_table", "read", "write"]
