"""`bertsmith show buckets`: which tokens LSH attention of a checkpoint brings together, checked pair by pair."""

import pytest
import torch

from bertsmith import api
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.batch import Inputs
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention, Reformer
from bertsmith.model.mixers.reformer.bucket_stats import compute_bucket_stats
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.packing import Layout
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.reports.mixer_stats import BucketLayer, render_buckets
from tests.support.html import read_heats
from tests.support.references import find_neighbors


def build_test_model(mixer, vocabulary=50, **settings):
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=32,
        mixer=mixer,
        feedforward=FeedForwardConfig(intermediate_size=16),
        max_position_embeddings=64,
        **settings,
    )
    return build_model(ModelConfig(encoder=encoder, vocab_size=vocabulary), 0).eval()


def save_checkpoint(folder, corpus, mixer):
    opened = Corpus.open(corpus)
    checkpoint.save(folder, build_test_model(mixer, len(opened.tokenizer)), opened.tokenizer, {}, {"stage": "pretrain"})
    return folder


@pytest.mark.parametrize("causal", [False, True])
def test_bucket_stats_match_sets_of_neighbors(causal):
    model, lengths = (
        build_test_model(
            Reformer(num_attention_heads=4, num_buckets=4, num_hashes=2, bucket_window=5, causal=causal), initializer_range=0.3
        ),
        (40, 9),
    )
    mixer_inputs = []
    model.encoder.stack.layers[0].mixer.register_forward_pre_hook(lambda mixer, args: mixer_inputs.append(args[0]))
    stats = compute_bucket_stats(model, Inputs(torch.arange(49), Layout.from_lengths(lengths)))
    assert len(stats) == 2
    mixer = model.encoder.stack.layers[0].mixer
    qk = mixer.qkv(mixer_inputs[0].clone()).chunk(2, -1)[0].view(49, 4, -1).transpose(0, 1)
    neighbors = find_neighbors(mixer, qk, lengths)
    tokens = [token for token in range(49) if not causal or token not in (0, 40)]
    for head in range(4):
        sizes = [len(neighbors[head][token]) for token in tokens]
        assert stats[0].mean_neighbors[head] == pytest.approx(sum(sizes) / len(sizes))
        assert stats[0].isolated_fraction[head] == pytest.approx(sizes.count(0) / len(sizes))
        assert 0 < stats[0].attention_recall[head] < 1


def test_bucket_stats_of_full_attention_have_recall_one():
    model = build_test_model(Reformer(num_attention_heads=4, num_buckets=4, num_hashes=1, bucket_window=64))
    layer = compute_bucket_stats(model, Inputs(torch.arange(30), Layout.from_lengths([30])))[0]
    assert (
        layer.mean_neighbors == [29.0] * 4
        and layer.isolated_fraction == [0.0] * 4
        and layer.attention_recall == pytest.approx([1.0] * 4)
    )


def test_show_buckets_page_has_every_head(corpus, tmp_path):
    folder = save_checkpoint(
        tmp_path / "model", corpus, Reformer(num_attention_heads=4, num_buckets=4, num_hashes=2, bucket_window=4)
    )
    result = api.show(kind="buckets", model=str(folder), corpus=str(corpus), out=str(tmp_path / "b.html"), quiet=True)
    assert result["layers"] and all(0 <= share <= 1 for layer in result["layers"] for share in layer["attention_recall"])
    page = (tmp_path / "b.html").read_text(encoding="utf-8")
    assert result["kind"] == "buckets" and "http" not in page
    assert len(read_heats(page)) == 8


def test_show_buckets_rejects_model_without_lsh(corpus, tmp_path):
    folder = save_checkpoint(tmp_path / "model", corpus, Attention(num_attention_heads=4))
    with pytest.raises(UserError, match="mixer=reformer"):
        api.show(kind="buckets", model=str(folder), corpus=str(corpus), out=str(tmp_path / "b.html"), quiet=True)


def test_bucket_cell_color_grows_with_recall():
    assert read_heats(render_buckets([BucketLayer([1.0], [0.0], [0.2, 0.9])], 10).body) == [0.15, 0.675]
