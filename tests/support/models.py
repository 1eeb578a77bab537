"""Small models: encoders of several kinds, inputs for them, and checkpoints of every task."""

import json

import torch

import bertsmith
from bertsmith.config import to_dict
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import LMHeadConfig, SequenceHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import Model, ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import (
    MultipleChoice,
    QuestionAnswering,
    TextClassification,
    TextRegression,
    TextSimilarity,
    TokenClassification,
)
from bertsmith.tensors import load_tensors
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB


def check_trained_model(out, result):
    """Check that 40 steps lowered the loss and that masks are filled deterministically; returns the names of its weights."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert (result["step"], result["skipped_steps"]) == (40, 0)
    assert result["valid_mlm_loss"] < rows[0]["mlm_loss"] - 0.3
    guesses = bertsmith.load(out).fill("the [MASK] of [MASK]")
    assert [len(guess) for guess in guesses] == [5, 5]
    assert guesses == bertsmith.load(out).fill("the [MASK] of [MASK]")
    return set(load_tensors(out / "model.safetensors"))


TOKENIZER = Tokenizer.from_vocab(VOCAB)

BERT_ENCODER = EncoderConfig(
    num_hidden_layers=2,
    hidden_size=32,
    mixer=Attention(num_attention_heads=2),
    feedforward=FeedForwardConfig(intermediate_size=64),
    max_position_embeddings=48,
    initializer_range=0.2,
)
TASKS = {
    "classify": TextClassification(labels=("bad", "good")),
    "regress": TextRegression(),
    "similar": TextSimilarity(),
    "choose": MultipleChoice(),
    "answer": QuestionAnswering(),
    "tag": TokenClassification(labels=("B-PER", "I-PER", "O"), scheme="bio"),
}


def save_model(folder, task=None, encoder=BERT_ENCODER):
    """Save a random model as `finetune` (with a task) or `pretrain` writes it."""
    heads = build_task_objective(task).heads() if task else {"lm": LMHeadConfig()}
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads=heads), 3)
    record = {"task": to_dict(task), "max_length": 48} if task else {}
    checkpoint.save(folder, model, TOKENIZER, {}, record)
    return folder


SMALL_ENCODER = EncoderConfig(
    num_hidden_layers=2,
    hidden_size=16,
    mixer=Attention(num_attention_heads=2),
    feedforward=FeedForwardConfig(intermediate_size=32),
    max_position_embeddings=16,
    initializer_range=0.2,
)


def build_small_classifier(seed: int = 0) -> Model:
    return build_model(
        ModelConfig(encoder=SMALL_ENCODER, vocab_size=30, heads={"task": SequenceHeadConfig(outputs=2)}), seed
    ).eval()


def build_two_sequences() -> Inputs:
    return Inputs(torch.arange(12) % 30, Layout.from_lengths([5, 7]))


CHAR_CNN_ENCODER = {
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "feedforward": "none",
    "norm": "none",
    "residual": "none",
    "position_embedding_type": "none",
    "type_vocab_size": 0,
    "embedding_norm": False,
    "hidden_dropout_prob": 0.0,
    "pooler_act": "none",
    "pooling": "mean",
    "mixer": {"kind": "lstm", "directions": "apart"},
    "embeddings": {"kind": "char-cnn", "filters": [[1, 3], [3, 5]], "max_characters_per_token": 10},
}

CAUSAL_ENCODER = EncoderConfig(
    num_hidden_layers=2, hidden_size=32, mixer=Attention(num_attention_heads=2, causal=True),
    feedforward=FeedForwardConfig(intermediate_size=64), max_position_embeddings=64,
    type_vocab_size=0, embedding_norm=False, hidden_dropout_prob=0.0,
)  # fmt: skip
