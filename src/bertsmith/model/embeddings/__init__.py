"""Input embeddings other than a table of token vectors. To add one: write its file, then register it in two lines here."""

from .adaptive import AdaptiveInputConfig
from .base import InputEmbedding
from .char_cnn import CharCNNConfig
from .factorized import FactorizedConfig, FactorizedEmbedding
from .fasttext import FastTextConfig
from .ngram import NgramConfig

InputEmbeddingConfig = CharCNNConfig | NgramConfig | FastTextConfig | AdaptiveInputConfig | FactorizedConfig

__all__ = [
    "AdaptiveInputConfig",
    "CharCNNConfig",
    "FactorizedConfig",
    "FactorizedEmbedding",
    "FastTextConfig",
    "InputEmbedding",
    "InputEmbeddingConfig",
    "NgramConfig",
]
