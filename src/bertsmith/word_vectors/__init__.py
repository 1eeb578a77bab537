"""Words and their vectors: files of every usual format, neighbours, analogies and how well they agree with people."""

from .files import FORMATS, Format, read_vectors, write_vectors
from .keyed_vectors import KeyedVectors, vectors_from_table

__all__ = ["FORMATS", "Format", "KeyedVectors", "read_vectors", "vectors_from_table", "write_vectors"]
