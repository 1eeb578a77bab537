"""Corpora: built by `prepare` from a text file, or made of numbers; segmenters and tokenizers for them."""

from pathlib import Path

import numpy as np

from bertsmith.corpus.store import Corpus
from bertsmith.tokenization.pipeline import WordSplitter, assemble_tokenizer
from bertsmith.tokenization.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertsmith.tokenization.trainers import build_model, train_vocabulary


def segment_pairs(text: str) -> list[str]:
    """A segmenter into words of two characters."""
    return [text[i : i + 2] for i in range(0, len(text), 2)]


def prepare_test_corpus(text: Path, vocabulary: Path, out: Path, **settings: object) -> Path:
    """Build a corpus folder from a text file; returns its path."""
    from bertsmith.config import from_dict
    from bertsmith.corpus.build import Prepare, build_corpus

    values = {"texts": [str(text)], "tokenizer": str(vocabulary), "out": str(out), "workers": 1, **settings}
    return build_corpus(from_dict(Prepare, values))[0]


def make_corpus(num_documents, seed=0, max_tokens=40, max_sentences=30):
    rng = np.random.default_rng(seed)
    sentences_per_document = rng.integers(1, max_sentences, num_documents)
    sentence_lengths = rng.integers(1, max_tokens, sentences_per_document.sum())
    tokens = np.arange(sentence_lengths.sum())  # each token is its own position
    offsets = np.append(0, sentence_lengths.cumsum()), np.append(0, sentences_per_document.cumsum())
    return Corpus(Path("made"), tokens, *offsets, None, {})


def train_and_save(folder, kind, text, size=320):
    counts: dict[str, int] = {}
    for word in WordSplitter(kind, True)(text):
        counts[word] = counts.get(word, 0) + 1
    vocabulary = train_vocabulary(kind, counts.items(), size, special_tokens=SPECIAL_TOKENS)
    Tokenizer(assemble_tokenizer(kind, build_model(vocabulary), True)).save(folder)
    return folder / "tokenizer.json"
