"""Word vectors: file formats, nearest neighbours, analogies, benchmarks, and the training of word2vec and GloVe tables."""

from .files import FORMATS, Format, read_vectors, write_vectors
from .keyed_vectors import KeyedVectors, vectors_from_table

__all__ = ["FORMATS", "Format", "KeyedVectors", "read_vectors", "vectors_from_table", "write_vectors"]
