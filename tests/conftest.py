"""Shared fixtures: a small vocabulary, and generated English and Chinese corpora."""

import os
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from bertsmith.console import log_to_stderr

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # tests run in parallel, and their tensors are small

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)  # failures are reproducible
hypothesis.settings.load_profile("repeatable")

WORDS = """
the of and to in a is that it was for on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way
""".split()  # noqa: SIM905
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHINESE_CHARS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜金生丽水玉出昆冈"
VOCAB = [
    *SPECIAL_TOKENS,
    *".,!?;:'\"()-",
    *LETTERS,
    *(f"##{c}" for c in LETTERS),
    *[w for w in WORDS if len(w) > 1],
    *CHINESE_CHARS,
    "。",
    "，",
]


def make_english_text(documents: int, seed: int = 0, sentences: int = 12) -> str:
    """Random English documents: one sentence per line, a blank line between documents."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        lines = [" ".join(rng.choice(WORDS, rng.integers(3, 18))).capitalize() + "." for _ in range(rng.integers(1, sentences))]
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


def make_chinese_text(documents: int, seed: int = 0, sentences: int = 8) -> str:
    """Random Chinese documents: one sentence per line, a blank line between documents."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        lines = [
            "".join(rng.choice(list(CHINESE_CHARS), rng.integers(4, 20))) + "。" for _ in range(rng.integers(2, sentences))
        ]
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


@pytest.fixture(autouse=True)
def messages_on_stderr():
    """Messages of functions that tests call directly are printed, as those of the command line are."""
    with log_to_stderr():
        yield


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a vocab.txt with `VOCAB`."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    """A prepared English corpus of 60 documents."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text(make_english_text(60), encoding="utf-8")
    return prepare_test_corpus(folder / "text.txt", vocabulary, folder / "corpus")


@pytest.fixture(scope="session")
def chinese(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    """A prepared Chinese corpus with word starts from a segmenter of two-character words."""
    folder = tmp_path_factory.mktemp("chinese")
    (folder / "text.txt").write_text(make_chinese_text(40), encoding="utf-8")
    return prepare_test_corpus(folder / "text.txt", vocabulary, folder / "corpus", segmenter="tests.conftest:segment_pairs")


def segment_pairs(text: str) -> list[str]:
    """A segmenter into words of two characters."""
    return [text[i : i + 2] for i in range(0, len(text), 2)]


def prepare_test_corpus(text: Path, vocabulary: Path, out: Path, **settings: object) -> Path:
    """Build a corpus folder from a text file; returns its path."""
    from bertsmith.config import from_dict
    from bertsmith.corpus.build import Prepare, build_corpus

    values = {"texts": [str(text)], "tokenizer": str(vocabulary), "out": str(out), "workers": 1, **settings}
    return build_corpus(from_dict(Prepare, values))[0]
