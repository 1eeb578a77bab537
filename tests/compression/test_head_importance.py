"""Head importance is the mean |dL/dξ| over examples: by finite differences, and as pruning's masks accumulate it."""

import numpy as np
import pytest
import torch

from bertsmith.compression.pruning.head_importance import compute_head_importance
from bertsmith.compression.pruning.masks import Pruner
from bertsmith.errors import UserError
from bertsmith.inference.engines.torch import TorchEngine
from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import EncoderConfig
from bertsmith.model.heads import SequenceHeadConfig, TokenHeadConfig
from bertsmith.model.mixers import Attention, Lstm
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives.supervised import ExampleBatches
from bertsmith.objectives.task_objective import build_task_objective
from bertsmith.tasks import TextClassification, TokenClassification
from bertsmith.tasks.classification import ClassificationExample
from bertsmith.tasks.conll_files import Sentence
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TOKENIZER = Tokenizer.from_vocab(VOCAB)
TASK = TextClassification(labels=("red", "green"))
EXAMPLES = [ClassificationExample(text=text, label=label) for text, label in
            [("she was here then", "red"), ("the way", "green"), ("they saw many others", "red")]]  # fmt: skip


CLASSIFIER = SequenceHeadConfig(outputs=2)


def build_predictor(task=TASK, head=CLASSIFIER, **settings):
    defaults = {"num_hidden_layers": 2, "hidden_size": 32, "mixer": Attention(num_attention_heads=4)}
    defaults |= {
        "feedforward": FeedForwardConfig(intermediate_size=32),
        "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.0,
    }
    encoder = EncoderConfig(**{**defaults, "initializer_range": 0.3, **settings})
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(TOKENIZER), heads={"task": head}), 1)
    return Predictor(TorchEngine(model, "fp32"), TOKENIZER, {}, task)


def loss_of(predictor, example):
    encoded = predictor.task.encode([example], TOKENIZER, 32)
    batches = ExampleBatches(predictor.task, encoded, 256, 0, shuffle=False)
    objective = build_task_objective(predictor.task)
    with torch.no_grad():
        return float(sum(objective.compute_loss(predictor.model, batches(0)).parts.values()))


def test_head_importance_matches_finite_differences():
    predictor = build_predictor()
    importance = compute_head_importance(predictor, EXAMPLES)
    predictor.model.double()
    for layer in range(2):
        weight = predictor.model.encoder.stack.layers[layer].mixer.projections.output.weight
        for head in range(4):
            columns, gradients = slice(8 * head, 8 * head + 8), []
            original = weight[:, columns].detach().clone()
            for example in EXAMPLES:
                losses = []
                for step in (2e-3, -2e-3):
                    weight.data[:, columns] = original * (1 + step)
                    losses.append(loss_of(predictor, example))
                weight.data[:, columns] = original
                gradients.append(abs(losses[0] - losses[1]) / 4e-3)
            assert importance[layer][head] == pytest.approx(np.mean(gradients), rel=2e-3, abs=1e-4)


def test_head_importance_of_one_example_is_what_pruning_accumulates():
    predictor = build_predictor()
    importance = compute_head_importance(predictor, EXAMPLES[:1])
    pruner = Pruner(predictor.model, "head", "gradient", "global")
    for masked in pruner.masks:
        masked.train()  # and the model without dropout
    batch = ExampleBatches(TASK, TASK.encode(EXAMPLES[:1], TOKENIZER, 32), 256, 0)(0)
    sum(build_task_objective(TASK).compute_loss(predictor.model, batch).parts.values()).backward()
    for layer, masked in zip(importance, pruner.masks, strict=True):
        np.testing.assert_allclose(layer, masked.scores.flatten(), rtol=1e-4)


def test_head_importance_is_a_mean_over_examples_whatever_the_batches(monkeypatch):
    predictor = build_predictor()
    together = compute_head_importance(predictor, EXAMPLES)
    alone = [compute_head_importance(predictor, [example]) for example in EXAMPLES]
    np.testing.assert_allclose(together, np.mean(alone, 0), rtol=1e-4)
    monkeypatch.setattr("bertsmith.compression.pruning.head_importance.BATCH_TOKENS", 8)
    np.testing.assert_allclose(together, compute_head_importance(predictor, EXAMPLES), rtol=1e-4)


def test_head_importance_of_shared_layers_and_of_tags():
    shared = build_predictor(num_hidden_groups=1, num_hidden_layers=3)
    assert [layer.shape for layer in compute_head_importance(shared, EXAMPLES)] == [(4,)] * 3
    tags = build_predictor(TokenClassification(labels=("O", "B-X")), TokenHeadConfig(outputs=2))
    sentence = Sentence(tokens=("she", "was"), tags=("O", "B-X"))
    assert all((layer > 0).all() for layer in compute_head_importance(tags, [sentence]))


def test_head_importance_needs_attention_and_labels():
    with pytest.raises(UserError, match="needs layers with mixer=attention"):
        compute_head_importance(build_predictor(mixer=Lstm()), EXAMPLES)
    with pytest.raises(UserError, match="needs labelled examples"):
        compute_head_importance(build_predictor(), [ClassificationExample(text="she")])
