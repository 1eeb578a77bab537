"""Shared fixtures: a small vocabulary, generated English and Chinese corpora, and a tiny model."""

import os
from pathlib import Path

import hypothesis
import pytest

from bertsmith.console import log_to_stderr

pytest.register_assert_rewrite(*(f"tests.support.{name}" for name in ("cli", "html", "models")))

from tests.support.cli import SMALL, run_cli  # noqa: E402
from tests.support.corpora import prepare_test_corpus  # noqa: E402
from tests.support.texts import VOCAB, make_chinese_text, make_english_text  # noqa: E402

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # tests run in parallel, and their tensors are small

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)  # failures are reproducible
hypothesis.settings.load_profile("repeatable")

TINY_ENCODER = {"num_hidden_layers": 1, "hidden_size": 32, "mixer": {"kind": "attention", "num_attention_heads": 2},
                "feedforward": {"intermediate_size": 64}, "max_position_embeddings": 64,
                "hidden_dropout_prob": 0.0, "norm": "pre", "initializer_range": 0.1}  # fmt: skip


@pytest.fixture(autouse=True)
def messages_on_stderr():
    """Messages of functions that tests call directly are printed, as those of the command line are."""
    with log_to_stderr():
        yield


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """What is kept in the user's cache folder, such as the fastest engine, is not the user's in tests."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def fp32_on_every_cpu():
    """precision=auto is fp32 also on a CPU with instructions for bf16: tests compare with exact values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertsmith.cores.has_bf16", lambda: False)
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
    return prepare_test_corpus(
        folder / "text.txt", vocabulary, folder / "corpus", segmenter="tests.support.corpora:segment_pairs"
    )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    """A checkpoint with random weights, large enough to be fine-tuned on an easy task."""
    from bertsmith.config import from_dict
    from bertsmith.model import checkpoint
    from bertsmith.model.model import ModelConfig, build_model
    from bertsmith.tokenization.tokenizer import Tokenizer

    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    tokenizer = Tokenizer.load(vocabulary)
    config = from_dict(ModelConfig, {"encoder": TINY_ENCODER, "vocab_size": len(tokenizer), "heads": {}})
    checkpoint.save(folder, build_model(config, 0), tokenizer, {}, {"stage": "pretrain"})
    return folder


@pytest.fixture(scope="session")
def bert(corpus, tmp_path_factory):
    """A barely pretrained model, for tasks that are easy."""
    out = tmp_path_factory.mktemp("bert") / "bert"
    words = [word for word in SMALL if "max_position_embeddings" not in word]
    run_cli(
        "pretrain", f"corpus={corpus}", f"out={out}", *words, "model.initializer_range=0.1", "model.norm=pre", "train.steps=5"
    )
    return out
