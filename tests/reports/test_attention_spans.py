"""`bertsmith show spans`: the learned attention span of every head of a checkpoint."""

import re

import pytest
import torch

from bertsmith import api
from bertsmith.corpus.store import Corpus
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import AdaptiveSpan, Attention
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.reports.mixer_stats import SpanLayer, render_spans
from tests.support.html import read_cells, read_heats

SPAN_FRACTIONS = [[0.0, 0.125, 0.5], [0.25, 1.0, 0.03125]]


def save_checkpoint(folder, corpus, mixer):
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=24,
        mixer=mixer,
        feedforward=FeedForwardConfig(intermediate_size=16),
        max_position_embeddings=64,
    )
    opened = Corpus.open(corpus)
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(opened.tokenizer)), 0)
    if isinstance(mixer, AdaptiveSpan):
        for block, fractions in zip(model.encoder.stack.layers, SPAN_FRACTIONS, strict=True):
            block.mixer.span.data = torch.tensor(fractions)
    checkpoint.save(folder, model, opened.tokenizer, {}, {"stage": "pretrain"})
    return folder


def test_show_spans_page_has_span_of_every_head(corpus, tmp_path):
    folder = save_checkpoint(tmp_path / "model", corpus, AdaptiveSpan(num_attention_heads=3, max_span=512, causal=True))
    result = api.show(kind="spans", model=str(folder), out=str(tmp_path / "spans.html"), quiet=True)
    page = (tmp_path / "spans.html").read_text(encoding="utf-8")
    assert result["kind"] == "spans" and "http" not in page
    assert result["max_span"] == 512 and [layer["trimmed_span"] for layer in result["layers"]] == [288, 512]
    assert [span for layer in result["layers"] for span in layer["spans"]] == [0, 64, 256, 128, 512, 16]
    assert read_cells(page) == ["0", "64", "256", "128", "512", "16"]
    assert re.findall(r'text-anchor="end">(\d{3})</text>', page.split("Learned span of")[-1]) == ["288", "512"]  # trimmed spans


def test_show_spans_rejects_model_without_adaptive_span(corpus, tmp_path):
    folder = save_checkpoint(tmp_path / "model", corpus, Attention(num_attention_heads=3))
    with pytest.raises(UserError, match="mixer=adaptive-span"):
        api.show(kind="spans", model=str(folder), out=str(tmp_path / "spans.html"), quiet=True)


def test_span_cell_color_grows_with_span():
    heats = read_heats(render_spans([SpanLayer([0.0, 10.0, 1000.0], 1000)], 1000, 32, True).body)
    assert heats == sorted(heats) and heats[0] == 0 and heats[2] == 0.75
