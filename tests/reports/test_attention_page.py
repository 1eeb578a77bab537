"""`bertsmith show attention`: an image for each head, whose pixels are the weights."""

import base64
import re
import struct
import zlib

import numpy as np
import pytest

import bertsmith
from bertsmith import api
from bertsmith.errors import UserError
from bertsmith.model import checkpoint
from bertsmith.model.config import EncoderConfig
from bertsmith.model.mixers import Attention, Lstm
from bertsmith.model.model import ModelConfig, build_model
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.reports.attention import render_attention
from bertsmith.reports.charts import heat_image
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.texts import VOCAB

TEXTS = ("she was here", "<script> the way & others")


def decode_alpha(uri, shape):
    """The opacity of each pixel of an RGBA image whose rows have no filter."""
    png = base64.b64decode(uri.partition(",")[2])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, start = {}, 8
    while start < len(png):
        (length,) = struct.unpack(">I", png[start : start + 4])
        kind, data = png[start + 4 : start + 8], png[start + 8 : start + 8 + length]
        assert struct.unpack(">I", png[start + 8 + length : start + 12 + length]) == (zlib.crc32(kind + data),)
        chunks[kind], start = data, start + 12 + length
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (shape[1], shape[0], 8, 6, 0, 0, 0)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(shape[0], 1 + 4 * shape[1])
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(*shape, 4)[..., 3]


def save_model(folder, mixer):
    encoder = EncoderConfig(
        num_hidden_layers=2,
        hidden_size=24,
        mixer=mixer,
        feedforward=FeedForwardConfig(intermediate_size=16),
        max_position_embeddings=200,
        initializer_range=0.3,
    )
    tokenizer = Tokenizer.from_vocab(VOCAB)
    model = build_model(ModelConfig(encoder=encoder, vocab_size=len(tokenizer)), 0)
    checkpoint.save(folder, model, tokenizer, {}, {"stage": "pretrain"})
    return str(folder)


def test_heat_image_has_a_pixel_for_each_value():
    values = np.array([[0, 0.5, 1], [0.2, 0.9, 0.1]], np.float32)
    np.testing.assert_array_equal(decode_alpha(heat_image(values), (2, 3)), [[0, 128, 255], [51, 230, 26]])


def test_show_attention_page_has_the_weights_of_every_head(tmp_path):
    folder = save_model(tmp_path / "model", Attention(num_attention_heads=3))
    result = api.show(kind="attention", model=folder, texts=TEXTS, out=str(tmp_path / "page.html"), quiet=True)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert result["kind"] == "attention" and "http" not in page and "<script" not in page and "&lt;script&gt;" in page
    images = re.findall(r'<image href="(data:[^"]*)"[^>]*/><rect[^>]*><title>layer (\d), head (\d)', page)
    expected = [(text, layer, head) for text in TEXTS for layer in (1, 2) for head in (1, 2, 3)]
    assert [(layer, head) for _, layer, head in images] == [(str(layer), str(head)) for _, layer, head in expected]
    attentions = dict(zip(TEXTS, bertsmith.load(folder).attentions(TEXTS), strict=True))
    for (uri, _, _), (text, layer, head) in zip(images, expected, strict=True):
        weights = attentions[text].weights[layer - 1, head - 1]
        np.testing.assert_allclose(decode_alpha(uri, weights.shape), 255 * weights / weights.max(), atol=0.51)
    assert page.count("mean over heads</figcaption>") == 4  # of each layer and text
    maps = re.findall(
        r"<figcaption>Attention rollout to the last layer</figcaption><svg[^>]*><image href=\"(data:[^\"]*)\"", page
    )
    for uri, text in zip(maps, TEXTS, strict=True):
        rollout = attentions[text].rollout[-1]
        np.testing.assert_allclose(decode_alpha(uri, rollout.shape), 255 * rollout / rollout.max(), atol=0.51)


def test_show_attention_refuses_what_it_cannot_draw(tmp_path):
    folder, out = save_model(tmp_path / "bert", Attention(num_attention_heads=3)), str(tmp_path / "page.html")
    with pytest.raises(UserError, match="needs texts=TEXT"):
        api.show(kind="attention", model=folder, out=out, quiet=True)
    with pytest.raises(UserError, match=r"at most 96, or take the numbers from load\(\.\.\.\)\.attentions"):
        api.show(kind="attention", model=folder, texts=["the way " * 60], out=out, quiet=True)
    with pytest.raises(UserError, match="no attention weights"):
        api.show(kind="attention", model=save_model(tmp_path / "lstm", Lstm()), texts=TEXTS, out=out, quiet=True)


def test_attention_section_facts_are_means_over_heads():
    weights = np.zeros((1, 2, 3, 3), np.float32)
    weights[0, 0, :, 0] = 1  # the first head attends to the first token: distances 0, 1, 2
    weights[0, 1] = np.eye(3)  # the second to each token itself
    body = render_attention("text", ["a", "b", "c"], weights, weights[:, 0]).body
    assert re.findall(r"<b>([^<]*)</b>", body) == ["1 x 2", "0.6667", "0.6667", "0.5"]
