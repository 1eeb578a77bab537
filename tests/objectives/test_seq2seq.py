"""Sequence-to-sequence objective: batches, label smoothing, and packing."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertsmith.model.config import EncoderConfig
from bertsmith.model.decoders import TransformerDecoderConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.objectives.seq2seq import (
    Seq2SeqBatches,
    Seq2SeqObjective,
    build_encoder_decoder_batch,
    build_prefix_lm_batch,
    label_smoothed_loss,
)
from bertsmith.tasks import Seq2Seq
from bertsmith.tasks.base import EncodedExamples

SOURCES = [np.array([2, 10, 11, 3]), np.array([2, 12, 3])]
TARGETS = [np.array([2, 7, 8, 9, 3]), np.array([2, 3])]
TASK = Seq2Seq(label_smoothing_factor=0.2)


def build_test_model(decoder, causal=False):
    encoder = EncoderConfig(
        num_hidden_layers=2, hidden_size=16, mixer=Attention(num_attention_heads=2, causal=causal),
        feedforward=FeedForwardConfig(intermediate_size=32), max_position_embeddings=16,
        hidden_dropout_prob=0.0, initializer_range=0.2, layer_norm_eps=1e-5,
    )  # fmt: skip
    return build_model(ModelConfig(encoder=encoder, vocab_size=14, heads=Seq2SeqObjective(TASK).heads(), decoder=decoder), 0)


def test_encoder_decoder_batch_shifts_targets():
    batch = build_encoder_decoder_batch(SOURCES, TARGETS)
    assert batch.inputs.input_ids.tolist() == [2, 10, 11, 3, 2, 12, 3]
    assert batch.decoder_inputs.input_ids.tolist() == [2, 7, 8, 9, 2] and batch.decoder_inputs.layout.lengths.tolist() == [4, 1]
    assert batch.targets["target_ids"].tolist() == [7, 8, 9, 3, 3] and batch.target_counts == {"task": 5}
    assert batch.num_tokens == 12 and batch.to("cpu").decoder_inputs is not None


def test_prefix_lm_batch_appends_target_to_source():
    batch = build_prefix_lm_batch(SOURCES, TARGETS)
    assert batch.inputs.input_ids.tolist() == [2, 10, 11, 3, 7, 8, 9, 2, 12, 3]
    assert batch.inputs.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert batch.inputs.layout.prefix_lengths.tolist() == [4, 3]
    assert batch.inputs.output_indices.tolist() == [3, 4, 5, 6, 9]  # from [SEP], which predicts the first token
    assert batch.targets["target_ids"].tolist() == [7, 8, 9, 3, 3] and batch.decoder_inputs is None


def test_prefix_lm_source_is_bidirectional_and_does_not_see_target():
    model = build_test_model(None, causal=True).eval()
    with torch.no_grad():
        inputs = [batch.inputs for batch in (
            build_prefix_lm_batch(SOURCES[:1], TARGETS[:1]), build_prefix_lm_batch(SOURCES[:1], [np.array([2, 5, 6, 4, 3])]),
            build_prefix_lm_batch([np.array([2, 10, 13, 3])], TARGETS[:1]),
        )]  # fmt: skip
        states = [model(x.__class__(x.input_ids, x.layout, x.token_type_ids)) for x in inputs]
    torch.testing.assert_close(states[0][:4], states[1][:4])
    assert not torch.allclose(states[0][0], states[2][0], atol=1e-3)  # later source tokens affect the first one


def test_label_smoothing_matches_torch():
    torch.manual_seed(0)
    logits, labels = torch.randn(7, 9), torch.arange(7)
    loss, nll = label_smoothed_loss(logits, labels, 0.1)
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum"))
    torch.testing.assert_close(nll, F.cross_entropy(logits, labels, reduction="sum"))


@pytest.mark.parametrize(
    ("build_batch", "decoder"), [(build_encoder_decoder_batch, TransformerDecoderConfig()), (build_prefix_lm_batch, None)]
)
def test_seq2seq_loss_sums_over_pairs_and_is_smoothed_only_in_training(build_batch, decoder):
    model, objective = build_test_model(decoder, causal=decoder is None), Seq2SeqObjective(TASK)
    with torch.no_grad():
        batch_loss = objective.compute_loss(model.train(), build_batch(SOURCES, TARGETS))
        pair_losses = [
            objective.compute_loss(model, build_batch([source], [target]))
            for source, target in zip(SOURCES, TARGETS, strict=True)
        ]
        torch.testing.assert_close(
            batch_loss.parts["task"], pair_losses[0].parts["task"] + pair_losses[1].parts["task"], atol=1e-4, rtol=1e-5
        )
        assert batch_loss.parts["task"] != batch_loss.metrics["nll"][0]
        eval_loss = objective.compute_loss(model.eval(), build_batch(SOURCES, TARGETS))
        torch.testing.assert_close(eval_loss.parts["task"], batch_loss.metrics["nll"][0], atol=1e-4, rtol=1e-5)


def test_seq2seq_batches_count_source_and_target_tokens():
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, 14, rng.integers(3, 9)) for _ in range(40)]
    target_lengths = rng.integers(2, 9, 40)
    targets = {"target_ids": np.concatenate([np.arange(length) for length in target_lengths]), "target_lengths": target_lengths}
    loader = Seq2SeqBatches(TASK, EncodedExamples(ids, [], np.arange(40), targets), 60, 0)
    batches = [loader(k) for k in range(loader.batches_per_epoch)]
    assert sum(batch.inputs.layout.num_sequences for batch in batches) == 40
    # the last target token is not an input
    assert all(batch.num_tokens + batch.inputs.layout.num_sequences <= 60 for batch in batches)
    assert sum(batch.target_counts["task"] for batch in batches) == int((target_lengths - 1).sum())
