"""Input embeddings other than a table of token vectors. To add one: write its file, then register it in two lines here."""

from .adaptive import AdaptiveInputConfig
from .base import InputEmbedding
from .char_cnn import CharCNNConfig
from .fasttext import FastTextConfig
from .ngram import NgramConfig

InputEmbeddingConfig = CharCNNConfig | NgramConfig | FastTextConfig | AdaptiveInputConfig

__all__ = ["AdaptiveInputConfig", "CharCNNConfig", "FastTextConfig", "InputEmbedding", "InputEmbeddingConfig", "NgramConfig"]
