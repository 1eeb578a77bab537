"""Words and their vectors: files of every usual format, neighbours, analogies and how well they agree with people."""

from .files import FORMATS, Format, read, write
from .keyed_vectors import Vectors, of_table

__all__ = ["FORMATS", "Format", "Vectors", "of_table", "read", "write"]
