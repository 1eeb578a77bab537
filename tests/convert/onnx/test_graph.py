"""Graphs equal the models that they are traced from, at any batch size and length."""

import numpy as np
import pytest
import torch

from bertsmith.convert.onnx import build_graph, build_head_graph
from bertsmith.convert.onnx.graph import add_weights, weight_names
from bertsmith.model.config import LayerSizes
from bertsmith.model.embeddings import FactorizedConfig
from bertsmith.model.heads import LMHeadConfig, PooledHeadConfig
from bertsmith.model.mixers import Attention
from bertsmith.model.sublayers import FeedForwardConfig
from tests.support.onnx_graphs import (
    SHAPES,
    build_encoder,
    build_random_model,
    open_session,
    pack_texts,
    pad_texts,
    random_texts,
    run_session,
)

pytest.importorskip("onnx", reason="onnx is not installed: pip install bertsmith[export]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install bertsmith[export]")

PLAIN = build_encoder(num_hidden_layers=1)
ROTARY = build_encoder(
    Attention(num_attention_heads=4, rope_theta=100.0, bias=False), num_hidden_layers=1, norm="pre", norm_bias=False,
    embedding_size=24,
    type_vocab_size=0, feedforward=FeedForwardConfig(intermediate_size=48, glu=True),
)  # fmt: skip


PRUNED = build_encoder(layer_sizes=LayerSizes((1, 3), (8, 40)), embeddings=FactorizedConfig(embedding_size=8))


@pytest.fixture(scope="module", params=[PLAIN, ROTARY, PRUNED], ids=["bert", "rotary", "pruned"])
def traced(request):
    model = build_random_model(request.param, {"lm": LMHeadConfig(), "nsp": PooledHeadConfig(labels=2)})
    return model, build_graph(model, weights=False)


@torch.inference_mode()
def test_graph_equals_the_model_at_any_batch_size_and_length(traced):
    model, proto = traced
    session = open_session(add_weights(proto, model))
    for lengths in SHAPES:
        texts = random_texts(lengths)
        outputs, inputs = run_session(session, texts), pack_texts(texts)
        hidden = model(inputs)
        pair_logits = model.compute_logits("nsp", model.encoder.pool_tokens(inputs))
        np.testing.assert_allclose(outputs["last_hidden_state"], hidden, atol=1e-4)
        np.testing.assert_allclose(outputs["sentence_embedding"], inputs.layout.mean_pool(hidden), atol=1e-4)
        np.testing.assert_allclose(outputs["seq_relationship_logits"], pair_logits, atol=1e-4)


def test_row_of_padding_alone_is_finite_and_changes_no_other_row(traced):
    model, proto = traced
    session, texts = open_session(add_weights(proto, model)), random_texts((5, 3))
    feeds = {name: value for name, value in pad_texts(texts).items() if name in {i.name for i in session.get_inputs()}}
    expected = session.run(["sentence_embedding"], feeds)[0]
    feeds = {name: np.concatenate([value, np.zeros_like(value[:1])]) for name, value in feeds.items()}
    embedding = session.run(["sentence_embedding"], feeds)[0]
    assert np.isfinite(embedding).all()
    np.testing.assert_allclose(embedding[:2], expected, atol=1e-6)


def test_graph_without_weights_takes_those_of_any_checkpoint(traced):
    ort = pytest.importorskip("onnxruntime")
    config, proto = traced[0].config, traced[1]
    model = build_random_model(config.encoder, dict(config.heads), seed=7)
    names, state, options = weight_names(proto), model.state_dict(), ort.SessionOptions()
    options.add_external_initializers(names, [ort.OrtValue.ortvalue_from_numpy(state[name].numpy()) for name in names])
    texts = random_texts(SHAPES[0])
    with torch.inference_mode():
        expected = model(pack_texts(texts))
    np.testing.assert_allclose(run_session(open_session(proto, options), texts)["last_hidden_state"], expected, atol=1e-4)


def test_graph_reads_every_weight_of_encoder_and_heads(traced):
    model, proto = traced
    names = {*weight_names(proto), *weight_names(build_head_graph(model, "lm", weights=False))}
    assert names == set(model.state_dict())


@torch.inference_mode()
def test_head_graph_equals_the_language_modeling_head(traced):
    model = traced[0]
    session, rows = open_session(build_head_graph(model, "lm")), torch.randn(3, 32)
    (logits,) = session.run(["logits"], {"last_hidden_state": rows.numpy()})
    np.testing.assert_allclose(logits, model.compute_logits("lm", rows), atol=1e-4)
