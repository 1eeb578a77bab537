"""Int8 graphs compute nearly what the float32 graph computes, with every large linear layer in int8."""

import numpy as np
import pytest
import torch

pytest.importorskip("onnx", reason="onnx is not installed: pip install bertsmith[export]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install bertsmith[export]")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")

import onnx

from bertsmith.convert.onnx import build_graph, build_head_graph, quantize
from bertsmith.convert.onnx.quantize import draw_batches, quantize_graph, quantize_rows, to_inputs
from bertsmith.errors import UserError
from bertsmith.model import int8
from bertsmith.model.heads import LMHeadConfig
from bertsmith.model.sublayers import FeedForwardConfig
from bertsmith.tokenization.tokenizer import Tokenizer
from tests.support.onnx_graphs import (
    build_encoder,
    build_random_model,
    open_session,
    pad_texts,
    random_texts,
    run_session,
)

BATCHES = [to_inputs(np.stack([random_texts((length,), seed)[0][0] for seed in range(4)])) for length in (4, 12, 40)]
TEXTS = random_texts((3, 17, 9, 30), seed=9)


def build_model(**options):
    """A model with channels far larger than the others, as trained ones have."""
    config = build_encoder(hidden_size=64, feedforward=FeedForwardConfig(intermediate_size=128), **options)
    model = build_random_model(config, {"lm": LMHeadConfig()})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter[3::31] *= 30
            else:
                parameter *= 0.4
            if name.endswith(("qkv.weight", "intermediate.weight")):
                parameter[:, 3::31] /= 30
    return model


@pytest.fixture(scope="module")
def graph():
    return build_graph(build_model())


def lowest_cosine(a, b):
    return ((a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)).min()


def run_openvino(proto):
    openvino = pytest.importorskip("openvino", reason="openvino is not installed: pip install bertsmith[openvino]")
    core = openvino.Core()
    model = core.compile_model(core.read_model(proto.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    feeds = pad_texts(TEXTS)
    names = {port.any_name for port in model.inputs}
    hidden = model({name: value for name, value in feeds.items() if name in names})["last_hidden_state"]
    return hidden[feeds["attention_mask"].astype(bool)]


def run_onnxruntime(proto):
    return run_session(open_session(proto), TEXTS)["last_hidden_state"]


@pytest.mark.parametrize(("target", "run"), [("onnx", run_onnxruntime), ("openvino", run_openvino)])
def test_int8_graph_is_close_and_has_int8_layers_only(graph, target, run):
    quantized = quantize_graph(graph, target, BATCHES)
    assert lowest_cosine(run(quantized), run_onnxruntime(graph)) > 0.99
    large = {tensor.name for tensor in graph.graph.initializer if len(tensor.dims) == 2 and "layers." in tensor.name}
    left = {tensor.name: tensor.data_type for tensor in quantized.graph.initializer}
    assert large and not large & set(left)
    assert {f"{name}.int8" for name in large} == {name for name, kind in left.items() if kind == onnx.TensorProto.INT8}
    assert len(quantized.SerializeToString()) < 0.5 * len(graph.SerializeToString())


def test_smoothing_is_what_keeps_outlier_channels_from_taking_up_the_scale(graph, monkeypatch):
    expected, smoothed = run_onnxruntime(graph), run_onnxruntime(quantize_graph(graph, "onnx", BATCHES))
    monkeypatch.setattr(quantize, "_smoothing_factor", lambda layer: np.ones(layer.weight.shape[1], np.float32))
    plain = run_onnxruntime(quantize_graph(graph, "onnx", BATCHES))
    assert 1 - lowest_cosine(smoothed, expected) < 0.5 * (1 - lowest_cosine(plain, expected))


def test_shared_layers_are_quantized_once():
    proto = build_graph(build_model(num_hidden_groups=1))
    quantized = quantize_graph(proto, "onnx", BATCHES)
    assert sum(node.op_type == "DynamicQuantizeMatMul" for node in quantized.graph.node) == 8
    assert sum(tensor.data_type == onnx.TensorProto.INT8 for tensor in quantized.graph.initializer) == 4
    assert lowest_cosine(run_onnxruntime(quantized), run_onnxruntime(proto)) > 0.99


def test_small_layers_stay_in_float():
    proto = build_head_graph(build_random_model(heads={"lm": LMHeadConfig()}), "lm")
    assert quantize_graph(proto, "onnx", []).graph.node == proto.graph.node


def test_weights_that_are_not_finite_are_refused(graph):
    broken = onnx.ModelProto()
    broken.CopyFrom(graph)
    tensor = next(t for t in broken.graph.initializer if t.name.endswith("intermediate.weight"))
    values = onnx.numpy_helper.to_array(tensor).copy()
    values[0, 0] = np.nan
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    with pytest.raises(UserError, match=r"intermediate\.weight contains NaN"):
        quantize_graph(broken, "onnx", BATCHES)


def test_rows_are_quantized_as_stored_checkpoints_are():
    weight = np.random.default_rng(0).normal(size=(7, 12)).astype(np.float32)
    weight[2] = 0
    values, scale = quantize_rows(weight)
    stored, stored_scale = int8.quantize_rows(torch.from_numpy(weight))
    np.testing.assert_array_equal(values, stored)
    np.testing.assert_allclose(scale, stored_scale)


def test_drawn_batches_are_framed_text_ids(vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    batches = draw_batches(tokenizer, 40)
    assert [batch["input_ids"].shape[1] for batch in batches] == [8, 16, 24, 32]
    for batch in batches:
        ids = batch["input_ids"]
        assert (ids[:, 0] == tokenizer.cls_token_id).all() and (ids[:, -1] == tokenizer.sep_token_id).all()
        assert np.isin(ids[:, 1:-1], tokenizer.non_special_ids).all()
    assert draw_batches(tokenizer, 5)[0]["input_ids"].shape == (2, 5)
