"""Checkpoint folders: the format version of config.json."""

import json

import pytest

from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import Model, ModelConfig
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

ENCODER = EncoderConfig(num_hidden_layers=1, hidden_size=8, mixer=Attention(num_attention_heads=2), max_position_embeddings=16)


@pytest.fixture
def folder(tmp_path):
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.load(vocab_file)
    model = Model(ModelConfig(encoder=ENCODER, vocab_size=len(tokenizer), heads={}))
    checkpoint.save(tmp_path / "model", model, tokenizer, {}, {"stage": "pretrain", "format_version": "0.1"})
    return tmp_path / "model"


def set_version(folder, version):
    config = json.loads((folder / "config.json").read_text())
    config.pop("format_version")
    (folder / "manifest.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | ({} if version is None else {"format_version": version})))


def test_checkpoint_config_carries_format_version(folder):
    assert json.loads((folder / "config.json").read_text())["format_version"] == "1.0"
    checkpoint.load(folder)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "has no format_version: it is from before the first release"),
        ("1.1", "but this bertsmith supports up to 1.0; upgrade bertsmith"),
        ("2.0", "has format_version 2.0, but"),
        ("one", "is not of the form '1.0'"),
        (1, "is not of the form '1.0'"),
    ],
)
def test_checkpoint_of_other_format_version_is_refused(folder, version, message):
    set_version(folder, version)
    with pytest.raises(UserError, match=message):
        checkpoint.load(folder, verify_checksums=False)


def test_checkpoint_of_older_format_version_is_read(folder, monkeypatch):
    monkeypatch.setattr("bertsmith.model.folder.FORMAT_VERSION", (1, 4))
    checkpoint.load(folder)
