"""A model that is its table of word vectors: no positions, no blocks; a text is the mean of its words."""

from .encoder import EncoderConfig
from .heads import HeadConfig
from .model import ModelConfig

LONGEST = 1 << 20  # tokens of a text: nothing in such a model grows with it


def bag(vocabulary: int, width: int, heads: dict[str, HeadConfig] | None = None) -> ModelConfig:
    """What word2vec, GloVe and files of vectors become, so that every stage takes them for a model."""
    encoder = EncoderConfig(
        layers=0, width=width, feedforward=None, norm="none", positions=LONGEST, table=False, segments=0,
        embedding_norm=False, dropout=0.0, pool="mean", pooler="none",
    )  # fmt: skip
    return ModelConfig(encoder=encoder, vocabulary=vocabulary, heads=heads or {})
