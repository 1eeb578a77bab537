"""A tiny checkpoint with random weights, large enough to be fine-tuned on an easy task."""

import pytest

from bertsmith.config import from_dict
from bertsmith.model import checkpoint
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.tokenization.tokenizer import Tokenizer

TINY_ENCODER = {"num_hidden_layers": 1, "hidden_size": 32, "mixer": {"kind": "attention", "num_attention_heads": 2},
                "feedforward": {"intermediate_size": 64}, "max_position_embeddings": 64,
                "hidden_dropout_prob": 0.0, "norm": "pre", "initializer_range": 0.1}  # fmt: skip


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory, vocabulary):
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    tokenizer = Tokenizer.load(vocabulary)
    config = from_dict(ModelConfig, {"encoder": TINY_ENCODER, "vocab_size": len(tokenizer), "heads": {}})
    checkpoint.save(folder, build_model(config, 0), tokenizer, {}, {"stage": "pretrain"})
    return folder
