"""A tiny model, and a package folder that ships it as tiny-en."""

from pathlib import Path

import pytest

import bertsmith
from bertsmith.config import from_dict
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.pretrained import shipped
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.model_facts import write_facts

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "mixer": {"kind": "attention", "num_attention_heads": 2},
    "feedforward": {"intermediate_size": 64},
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "initializer_range": 0.1,
}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    """A checkpoint folder as `pretrain` writes it, with random weights."""
    folder, tokenizer = tmp_path_factory.mktemp("source") / "bert", Tokenizer.load(vocabulary)
    config = from_dict(ModelConfig, {"encoder": TINY, "vocab_size": len(tokenizer), "heads": {"lm": {"kind": "lm"}}})
    record = {"stage": "pretrain", "tokenizer_fingerprint": tokenizer.fingerprint, "recipe": {"seed": 5, "max_length": [32]}}
    checkpoint.save(folder, build_model(config, 0), tokenizer, {"identity": "abc", "result": {"step": 7}}, record)
    return folder


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A folder of shipped models with one model, tiny-en."""
    root = tmp_path_factory.mktemp("package")
    card = write_facts(tmp_path_factory.mktemp("facts"))
    bertsmith.export(model=source, out=root / "tiny-en", format="int8", card=card, quiet=True)
    return root


@pytest.fixture
def ships(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package ships tiny-en, and the working directory is an empty one."""
    monkeypatch.setattr(shipped, "ROOT", package)
    monkeypatch.chdir(tmp_path)
    return package
