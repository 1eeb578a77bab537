"""Translation as an objective: what is asked, what it costs, and that packing answers changes nothing."""

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
ANSWERS = [np.array([2, 7, 8, 9, 3]), np.array([2, 3])]
TASK = Seq2Seq(smoothing=0.2)


def model(decoder, causal=False):
    encoder = EncoderConfig(
        layers=2, width=16, mixer=Attention(heads=2, causal=causal), feedforward=FeedForwardConfig(inner=32), positions=16,
        dropout=0.0, deviation=0.2, eps=1e-5,
    )  # fmt: skip
    return build_model(ModelConfig(encoder=encoder, vocabulary=14, heads=Seq2SeqObjective(TASK).heads(), decoder=decoder), 0)


def test_a_decoder_is_told_the_answer_and_asked_for_what_follows_each_token():
    made = build_encoder_decoder_batch(SOURCES, ANSWERS)
    assert made.inputs.input_ids.tolist() == [2, 10, 11, 3, 2, 12, 3]
    assert made.decoder_inputs.input_ids.tolist() == [2, 7, 8, 9, 2] and made.decoder_inputs.layout.lengths.tolist() == [4, 1]
    assert made.targets["words"].tolist() == [7, 8, 9, 3, 3] and made.target_counts == {"task": 5}
    assert made.num_tokens == 12 and made.to("cpu").decoder_inputs is not None


def test_one_stack_reads_the_answer_behind_the_source():
    made = build_prefix_lm_batch(SOURCES, ANSWERS)
    assert made.inputs.input_ids.tolist() == [2, 10, 11, 3, 7, 8, 9, 2, 12, 3]
    assert made.inputs.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert made.inputs.layout.prefix_lengths.tolist() == [4, 3]
    assert made.inputs.output_indices.tolist() == [3, 4, 5, 6, 9]  # from [SEP], which foretells the first token
    assert made.targets["words"].tolist() == [7, 8, 9, 3, 3] and made.decoder_inputs is None


def test_the_source_sees_itself_both_ways_and_nothing_of_the_answer():
    one = model(None, causal=True).eval()
    with torch.no_grad():
        rows = [one(made.inputs.__class__(made.inputs.input_ids, made.inputs.layout, made.inputs.token_type_ids)) for made in (
            build_prefix_lm_batch(SOURCES[:1], ANSWERS[:1]), build_prefix_lm_batch(SOURCES[:1], [np.array([2, 5, 6, 4, 3])]),
            build_prefix_lm_batch([np.array([2, 10, 13, 3])], ANSWERS[:1]),
        )]  # fmt: skip
    torch.testing.assert_close(rows[0][:4], rows[1][:4])
    assert not torch.allclose(rows[0][0], rows[2][0], atol=1e-3)  # what stands later in the source counts at its first token


def test_smoothed_labels_cost_what_torch_says():
    torch.manual_seed(0)
    scores, words = torch.randn(7, 9), torch.arange(7)
    total, bare = label_smoothed_loss(scores, words, 0.1)
    torch.testing.assert_close(total, F.cross_entropy(scores, words, label_smoothing=0.1, reduction="sum"))
    torch.testing.assert_close(bare, F.cross_entropy(scores, words, reduction="sum"))


@pytest.mark.parametrize(
    ("make", "decoder"), [(build_encoder_decoder_batch, TransformerDecoderConfig()), (build_prefix_lm_batch, None)]
)
def test_a_batch_costs_the_sum_of_its_couples_and_is_smoothed_only_while_it_learns(make, decoder):
    one, lesson = model(decoder, causal=decoder is None), Seq2SeqObjective(TASK)
    with torch.no_grad():
        both = lesson.compute_loss(one.train(), make(SOURCES, ANSWERS))
        each = [lesson.compute_loss(one, make([source], [said])) for source, said in zip(SOURCES, ANSWERS, strict=True)]
        torch.testing.assert_close(both.parts["task"], each[0].parts["task"] + each[1].parts["task"], atol=1e-4, rtol=1e-5)
        assert both.parts["task"] != both.metrics["nats"][0]
        judged = lesson.compute_loss(one.eval(), make(SOURCES, ANSWERS))
        torch.testing.assert_close(judged.parts["task"], both.metrics["nats"][0], atol=1e-4, rtol=1e-5)


def test_batches_count_sources_and_answers_and_hold_every_couple_once():
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, 14, rng.integers(3, 9)) for _ in range(40)]
    sizes = rng.integers(2, 9, 40)
    targets = {"reply": np.concatenate([np.arange(size) for size in sizes]), "size": sizes}
    reading = Seq2SeqBatches(TASK, EncodedExamples(ids, [], np.arange(40), targets), 60, 0)
    batches = [reading(k) for k in range(reading.batches_per_epoch)]
    assert sum(one.inputs.layout.num_sequences for one in batches) == 40
    assert all(one.num_tokens + one.inputs.layout.num_sequences <= 60 for one in batches)  # what is asked for is not read
    assert sum(one.target_counts["task"] for one in batches) == int((sizes - 1).sum())
