"""Int8 computation of linear layers in an exported graph.

Weights are int8, symmetric, with a scale for each output channel. Activations are uint8 with one scale and zero point:

- onnxruntime: of each batch as it comes, by `DynamicQuantizeMatMul`.
- OpenVINO: of the calibration batches, by `QuantizeLinear` and `DequantizeLinear`.

A few channels of a transformer's hidden states are far larger than the others and would take up that scale. So inputs are
divided by a factor for each channel and the weights multiplied by it (SmoothQuant, Xiao et al. 2023, eq. 4). Ranges of the
channels are measured with onnxruntime on a few batches.

Embeddings, attention products, normalizations and small layers such as a classifier's stay in the precision of the graph.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UserError
from .outputs import ATTENTION_MASK, INPUT_IDS, TOKEN_TYPE_IDS

if TYPE_CHECKING:
    import onnx

    from ...tokenization.tokenizer import Tokenizer

Target = Literal["onnx", "openvino"]
Floats = NDArray[np.float32]

INT8_MAX, UINT8_MAX = 127, 255
MIN_CHANNELS = 64  # of inputs and of outputs; smaller layers cost nothing in float32
SMOOTHING_STRENGTH = 0.75  # alpha of SmoothQuant: how much of the range moves from the activations to the weights
RANGE_MARGIN = 1.2  # static ranges in units of those measured, for texts beyond the calibration
CALIBRATION_LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MICROSOFT = "com.microsoft"  # domain of onnxruntime's own operators


class Layer(NamedTuple):
    """A linear layer of the graph."""

    node: "onnx.NodeProto"
    weight: Floats  # (outputs, inputs)
    lowest: Floats  # (inputs,): the least value of each input channel, at most 0
    highest: Floats  # (inputs,): the greatest, at least 0
    is_smoothed: bool


def quantize_graph(
    proto: "onnx.ModelProto", target: Target, batches: Sequence[Mapping[str, NDArray[Any]]]
) -> "onnx.ModelProto":
    """The graph with int8 linear layers for onnxruntime (`onnx`) or OpenVINO; `proto` has its weights and is not changed.

    Raises UserError if a weight is not finite. A graph without linear layers comes back as it is.

    Args:
        batches: inputs of the graph by name, to measure the ranges of the channels; without padding
    """
    import onnx

    quantized = onnx.ModelProto()
    quantized.CopyFrom(proto)
    graph, added = quantized.graph, dict[str, onnx.TensorProto]()
    build = _build_dynamic if target == "onnx" else _build_static
    if not (layers := _find_layers(graph, target, proto, batches)):
        return quantized
    replaced = {layer.node.output[0]: build(layer, added) for layer in layers}
    nodes = [part for node in graph.node for part in replaced.get(node.output[0], [node])]
    del graph.node[:]
    graph.node.extend(nodes)
    reads = count_reads(graph)
    kept = [tensor for tensor in graph.initializer if reads[tensor.name]]
    del graph.initializer[:]
    graph.initializer.extend([*kept, *added.values()])
    if target == "onnx" and all(entry.domain != MICROSOFT for entry in quantized.opset_import):
        quantized.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return quantized


def draw_batches(tokenizer: "Tokenizer", max_length: int, seed: int = 0) -> list[dict[str, NDArray[np.int64]]]:
    """Calibration batches without texts: random ids between [CLS] and [SEP], two sequences of each of several lengths.

    The probability of an id falls with its place in the vocabulary (log-uniform), as frequencies do where a vocabulary is
    sorted by them.
    """
    rng, ids = np.random.default_rng(seed), tokenizer.non_special_ids
    batches = list[dict[str, NDArray[np.int64]]]()
    for length in [length for length in CALIBRATION_LENGTHS if length <= max_length] or [max(2, max_length)]:
        input_ids = ids[np.exp(rng.uniform(0, np.log(len(ids)), (2, length))).astype(np.int64) - 1]
        input_ids[:, 0], input_ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
        batches.append(to_inputs(input_ids))
    return batches


def to_inputs(input_ids: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Inputs of a graph for (sequences, length) ids without padding."""
    return {INPUT_IDS: input_ids, ATTENTION_MASK: np.ones_like(input_ids), TOKEN_TYPE_IDS: np.zeros_like(input_ids)}


def quantize_rows(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """(outputs, inputs) -> int8 of the same shape and (outputs,) scales, max|w| / 127 of each row."""
    scale = np.maximum(np.abs(weight).max(1) / INT8_MAX, np.finfo(np.float32).tiny).astype(np.float32)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale


def _is_linear(node: "onnx.NodeProto", tensors: dict[str, Any]) -> bool:
    """x @ W.T + b with a constant W of at least MIN_CHANNELS inputs and outputs."""
    if node.op_type not in ("Gemm", "MatMul") or node.input[0] in tensors or node.input[1] not in tensors:
        return False
    tensor = tensors[node.input[1]]
    if len(tensor.dims) != 2 or min(tensor.dims) < MIN_CHANNELS or tensor.data_type != tensor.FLOAT:
        return False
    if node.op_type == "MatMul":
        return True
    values = {
        attribute.name: attribute.i if attribute.name.startswith("trans") else attribute.f for attribute in node.attribute
    }
    has_vector_bias = len(node.input) < 3 or (node.input[2] in tensors and len(tensors[node.input[2]].dims) == 1)
    is_plain = (values.get("transB", 0), values.get("transA", 0)) == (1, 0)
    return is_plain and values.get("alpha", 1.0) == values.get("beta", 1.0) == 1.0 and has_vector_bias


def _find_layers(
    graph: "onnx.GraphProto", target: Target, proto: "onnx.ModelProto", batches: Sequence[Mapping[str, NDArray[Any]]]
) -> list[Layer]:
    """The layers to quantize. A weight that is also an embedding table, or is read in a loop, stays as it is."""
    import onnx

    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes, reads = [node for node in graph.node if _is_linear(node, tensors)], count_reads(graph)
    linear_reads = Counter(node.input[1] for node in nodes)
    nodes = [node for node in nodes if reads[node.input[1]] == linear_reads[node.input[1]]]
    ranges = _measure_ranges(proto, list(dict.fromkeys(node.input[0] for node in nodes)), batches) if nodes else {}
    layers = list[Layer]()
    for node in nodes:
        name = node.input[1]
        weight = onnx.numpy_helper.to_array(tensors[name])
        weight = weight.T if node.op_type == "MatMul" else weight
        if not np.isfinite(weight).all():
            raise UserError(f"{name} contains NaN or infinity and cannot be quantized")
        of_inputs = [ranges[other.input[0]] for other in nodes if other.input[1] == name]  # several where layers share it
        lowest, highest = np.min([low for low, _ in of_inputs], 0), np.max([high for _, high in of_inputs], 0)
        # At run time the division costs a pass over the input: too much before onnxruntime's layers with many inputs.
        is_smoothed = target == "openvino" or weight.shape[1] <= weight.shape[0]
        layers.append(Layer(node, weight, lowest, highest, is_smoothed))
    return layers


def _measure_ranges(
    proto: "onnx.ModelProto", names: list[str], batches: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, tuple[Floats, Floats]]:
    """Least and greatest value of each channel, 0 included, of these values of a graph."""
    import onnx
    import onnxruntime

    watched = onnx.ModelProto()
    watched.CopyFrom(proto)
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs, ranges = {value.name for value in session.get_inputs()}, dict[str, tuple[Floats, Floats]]()
    for batch in batches:
        feeds = {name: value for name, value in batch.items() if name in inputs}
        for name, value in zip(names, session.run(names, feeds), strict=True):
            rows = value.reshape(-1, value.shape[-1])
            lowest, highest = ranges.get(name, (np.zeros(rows.shape[1], np.float32),) * 2)
            ranges[name] = np.minimum(lowest, rows.min(0)), np.maximum(highest, rows.max(0))
    return ranges


def _smoothing_factor(layer: Layer) -> Floats:
    """(inputs,): what to divide the input by, max|x| ** alpha / max|w| ** (1 - alpha), with geometric mean 1."""
    sizes = np.maximum(layer.highest, -layer.lowest).astype(np.float64), np.abs(layer.weight).max(0).astype(np.float64)
    x, w = (np.maximum(size, max(size.max() * 1e-5, np.finfo(np.float32).tiny)) for size in sizes)
    factor = x**SMOOTHING_STRENGTH / w ** (1 - SMOOTHING_STRENGTH)
    return (factor / np.exp(np.log(factor).mean())).astype(np.float32)


def _smooth(layer: Layer, added: dict[str, "onnx.TensorProto"]) -> tuple[list["onnx.NodeProto"], str, Layer]:
    """The division of the input, the name of what it gives, and the layer that takes it."""
    import onnx

    if not layer.is_smoothed:
        return [], layer.node.input[0], layer
    factor = _smoothing_factor(layer)
    inverse = _add(added, f"{layer.node.input[1]}.smoothing", 1 / factor)
    node = onnx.helper.make_node("Mul", [layer.node.input[0], inverse], [f"{layer.node.output[0]}.smoothed"])
    lowest, highest = layer.lowest / factor, layer.highest / factor
    return [node], node.output[0], layer._replace(weight=layer.weight * factor, lowest=lowest, highest=highest)


def _build_dynamic(layer: Layer, added: dict[str, "onnx.TensorProto"]) -> list["onnx.NodeProto"]:
    import onnx

    nodes, x, layer = _smooth(layer, added)
    name, (values, scale) = layer.node.input[1], quantize_rows(layer.weight)
    inputs = [x, _add(added, f"{name}.int8", values.T), _add(added, f"{name}.scale", scale)]
    inputs += ["", *layer.node.input[2:]] if len(layer.node.input) > 2 else []
    outputs = list(layer.node.output)
    return [*nodes, onnx.helper.make_node("DynamicQuantizeMatMul", inputs, outputs, layer.node.name, domain=MICROSOFT)]


def _build_static(layer: Layer, added: dict[str, "onnx.TensorProto"]) -> list["onnx.NodeProto"]:
    import onnx

    nodes, x, layer = _smooth(layer, added)
    name, output, is_gemm = layer.node.input[1], layer.node.output[0], layer.node.op_type == "Gemm"
    values, scale = quantize_rows(layer.weight)
    lowest, highest = (RANGE_MARGIN * float(bound) for bound in (layer.lowest.min(), layer.highest.max()))
    step = max((highest - lowest) / UINT8_MAX, float(np.finfo(np.float32).tiny))
    zero_point = np.uint8(np.clip(round(-lowest / step), 0, UINT8_MAX))
    parameters = [
        _add(added, f"{output}.step", np.asarray(step, np.float32)),
        _add(added, f"{output}.zero_point", np.asarray(zero_point)),
    ]
    weight = [_add(added, f"{name}.int8", values if is_gemm else values.T), _add(added, f"{name}.scale", scale)]
    linear = onnx.NodeProto()
    linear.CopyFrom(layer.node)
    linear.input[0], linear.input[1] = f"{output}.input", f"{output}.weight"
    return [
        *nodes,
        onnx.helper.make_node("QuantizeLinear", [x, *parameters], [f"{output}.quantized"]),
        onnx.helper.make_node("DequantizeLinear", [f"{output}.quantized", *parameters], [linear.input[0]]),
        onnx.helper.make_node("DequantizeLinear", weight, [linear.input[1]], axis=0 if is_gemm else 1),
        linear,
    ]


def _add(added: dict[str, "onnx.TensorProto"], name: str, array: NDArray[Any]) -> str:
    import onnx

    added[name] = onnx.numpy_helper.from_array(np.array(array, order="C"), name)
    return name


def count_reads(graph: "onnx.GraphProto") -> Counter[str]:
    """How many nodes read each value, bodies of Loop, Scan and If included."""
    return Counter(read_names(graph.node)) + Counter(output.name for output in graph.output)


def read_names(nodes: Iterable["onnx.NodeProto"]) -> Iterable[str]:
    """The values that nodes read, with those of the bodies of Loop, Scan and If."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from read_names(attribute.g.node)
                yield from (output.name for output in attribute.g.output)
