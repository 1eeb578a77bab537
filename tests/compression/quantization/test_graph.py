"""Quantized graphs compute what NumPy computes with the same integers, and are near the float graph."""

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed: pip install bertsmith[export]")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install bertsmith[export]")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install bertsmith[onnx]")

import onnx

from bertsmith.compression.quantization import calibration
from bertsmith.compression.quantization.candidate import Candidates, FloatModel
from bertsmith.compression.quantization.quality import compare, compute_outputs, measure_sensitivity
from bertsmith.compression.quantization.weights import ActivationRange, smoothing_scale
from bertsmith.model.folder import unpack_int4
from tests.support.quantization import VOCAB_SIZE, build_model

BATCHES = [calibration.to_feeds(np.random.default_rng(length).integers(5, VOCAB_SIZE, (4, length))) for length in (4, 12, 40)]


@pytest.fixture(scope="module")
def original():
    return FloatModel(build_model(), None)


def calibrate(original, mode="dynamic", bits=8, percentile=None, smooth=True):
    channels = calibration.measure_channels(original.graph, original.weights, original.linears, BATCHES)
    scales = {name: smoothing_scale(original.weights[name], values) for name, values in channels.items()}
    scales = scales if smooth else {name: np.ones_like(scale) for name, scale in scales.items()}
    activations = None
    if mode == "static" and percentile:
        activations = calibration.measure_percentiles(
            original.graph, original.weights, original.linears, BATCHES, scales, percentile
        )
    elif mode == "static":
        activations = {name: calibration.smoothed_range(values, scales[name]) for name, values in channels.items()}
    return Candidates(original, scales, activations, bits)


def measure(original, candidates, names=frozenset()):
    expected = compute_outputs(original.as_quantized().open(), BATCHES)
    return compare(compute_outputs(candidates.build(names).open(), BATCHES), expected)


def test_every_layer_and_table_is_found(original):
    assert len(original.linears) == 8 and original.tables == ["encoder.word_embeddings.weight"]
    quantized = calibrate(original).build(frozenset())
    assert sum(node.op_type == "DynamicQuantizeMatMul" for node in quantized.graphs["model"].graph.node) == 8
    external = [tensor for tensor in quantized.graphs["model"].graph.initializer if tensor.name.endswith(":stored")]
    assert len(external) == 9 and {tensor.data_type for tensor in external} == {onnx.TensorProto.INT8}


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_graph_is_near_the_float_graph(original, mode):
    quality = measure(original, calibrate(original, mode))
    assert quality.cosine > 0.995 and 0 < quality.output_error < 0.1


def test_smoothing_is_what_keeps_outlier_channels_from_taking_up_the_scale(original):
    smoothed, plain = (measure(original, calibrate(original, "static", smooth=smooth)) for smooth in (True, False))
    assert smoothed.output_error < 0.7 * plain.output_error


def test_percentiles_that_clip_outlier_channels_ruin_a_model():
    """BERT on SQuAD falls to F1 5.8 (onnxruntime issue 10571): the outliers that are clipped matter most."""
    original = FloatModel(build_model(outlier_weight=1), None)
    whole, clipped = (
        measure(original, calibrate(original, "static", percentile=percentile, smooth=False)) for percentile in (100, 90)
    )
    assert clipped.output_error > 3 * whole.output_error


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_linear_layer_equals_dequantized_arithmetic_in_numpy(original, mode):
    candidates = calibrate(original, mode)
    layer = original.linears[2]  # feed-forward of the first block
    others = frozenset(original.weights) - {layer.weight}
    quantized = candidates.build(others)
    watch = [layer.input, layer.output]
    values = calibration.open_session(quantized.graphs["model"], quantized.stored, watch)(BATCHES[1])
    x = values[layer.input].astype(np.float64) * candidates.input_scales[layer.weight]
    activation = (
        ActivationRange(min(0, x.min()), max(0, x.max())) if mode == "dynamic" else candidates.activations[layer.weight]
    )
    integers = np.clip(np.rint(x / activation.step) + activation.zero_point, 0, 255) - activation.zero_point
    products = integers @ quantized.stored[layer.weight].astype(np.float64).T
    bias = original.weights[layer.weight.replace("weight", "bias")]
    expected = products * activation.step * quantized.stored[layer.weight + ":scale"] + bias
    difference = np.abs(values[layer.output] - expected)
    assert np.median(difference) < 1e-5  # a value on the border of two steps may be rounded the other way in float32
    assert difference.max() <= 4 * activation.step * np.abs(quantized.stored[layer.weight + ":scale"]).max() * 127


@pytest.mark.parametrize("bits", [8, 4])
def test_tables_are_looked_up_as_integers(original, bits):
    quantized = calibrate(original, bits=bits).build(frozenset(layer.weight for layer in original.linears))
    name = original.tables[0]
    gather = next(node for node in original.graph.graph.node if node.op_type == "Gather" and node.input[0] == name)
    rows = calibration.open_session(quantized.graphs["model"], quantized.stored, [gather.output[0]])(BATCHES[0])
    stored = quantized.stored[name]
    values = stored if bits == 8 else unpack_int4(stored)
    table = values * quantized.stored[name + ":scale"][:, None]
    np.testing.assert_allclose(rows[gather.output[0]].reshape(-1, 64), table[BATCHES[0]["input_ids"].ravel()], rtol=1e-6)
    assert stored.nbytes == original.weights[name].nbytes * bits // 32
    head = calibration.open_session(quantized.graphs["lm"], quantized.stored)
    hidden = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    plain = calibration.open_session(original.graphs["lm"], {**original.weights, name: table.astype(np.float32)})
    logits, expected = (run({"last_hidden_state": hidden})["logits"] for run in (head, plain))
    assert np.corrcoef(logits.ravel(), expected.ravel())[0, 1] > 0.999


def test_static_answers_do_not_depend_on_the_batch(original):
    """Ranges of mode=dynamic are those of the whole batch."""
    alone = {name: value[:1] for name, value in BATCHES[1].items()}
    changes = {}
    for mode in ("dynamic", "static"):
        run = calibrate(original, mode).build(frozenset()).open()
        changes[mode] = np.abs(run(alone)["sentence_embedding"] - run(BATCHES[1])["sentence_embedding"][:1]).max()
    assert changes["static"] < 1e-5 < changes["dynamic"]


def test_layers_with_the_largest_error_come_first_and_are_worth_keeping(original):
    candidates, expected = calibrate(original, smooth=False), compute_outputs(original.as_quantized().open(), BATCHES)
    rows = measure_sensitivity(candidates.names, candidates.open_with, BATCHES, expected)
    errors = [row["output_error"] for row in rows]
    assert {row["layer"] for row in rows} == set(candidates.names) and errors == sorted(errors, reverse=True) and errors[-1] > 0
    kept_first, kept_last = (measure(original, candidates, frozenset([rows[i]["layer"]])) for i in (0, -1))
    assert kept_first.output_error < kept_last.output_error <= 1.1 * measure(original, candidates).output_error


def test_shared_layers_are_stored_once():
    shared = FloatModel(build_model(num_hidden_groups=1), None)
    quantized = calibrate(shared).build(frozenset())
    assert sum(node.op_type == "DynamicQuantizeMatMul" for node in quantized.graphs["model"].graph.node) == 8
    assert sum(array.dtype == np.int8 for name, array in quantized.stored.items() if "layers." in name) == 4
    assert measure(shared, calibrate(shared)).cosine > 0.99
