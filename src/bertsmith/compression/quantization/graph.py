"""The graph of a quantized model: its weights are external data, the tensors that its folder stores (see `weights`).

| of the float graph | here |
|---|---|
| a linear layer, mode=dynamic | `DynamicQuantizeMatMul`: the range of the activations is that of the batch |
| mode=static and qat | `QuantizeLinear`, with the range that was measured or learned, and `MatMulIntegerToFloat` |
| `Gather` of an embedding table | `Gather` of integers and of scales |
| anything else that reads a stored matrix | `Cast` and `Mul`, which engines compute once, when they load the graph |

The first two operators are onnxruntime's; OpenVINO reads them, too, and computes them in float32.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...convert.onnx.quantize import count_reads, read_names
from ...model.folder import INPUT_SCALE_SUFFIX, SCALE_SUFFIX
from .weights import MIN_SIZE, ActivationRange, Arrays

if TYPE_CHECKING:
    import onnx

MICROSOFT = "com.microsoft"  # domain of onnxruntime's own operators


class Linear(NamedTuple):
    """A node x @ W.T + b of a graph."""

    weight: str
    input: str
    output: str


def find_linears(proto: "onnx.ModelProto") -> list[Linear]:
    """The linear layers with matrices that are not small; not those whose matrix is read by other nodes, too."""
    tensors, transposed = {tensor.name: tensor for tensor in proto.graph.initializer}, _find_transposed(proto.graph)
    layers = [
        Linear(weight, node.input[0], node.output[0])
        for node in proto.graph.node
        if (weight := _linear_weight(node, tensors, transposed)) is not None
    ]
    counts, reads = Counter(layer.weight for layer in layers), count_reads(proto.graph)
    for output, weight in transposed.items():  # the reads of its transpose instead of the node that makes it
        reads[weight] += reads[output] - 1
    return [layer for layer in layers if reads[layer.weight] == counts[layer.weight]]


def find_tables(proto: "onnx.ModelProto") -> list[str]:
    """The embedding tables: matrices whose rows a `Gather` reads."""
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    gathered = [node.input[0] for node in proto.graph.node if _is_lookup(node) and node.input[0] in tensors]
    return [name for name in dict.fromkeys(gathered) if min(tensors[name].dims) >= MIN_SIZE and len(tensors[name].dims) == 2]


def quantize_graph(
    proto: "onnx.ModelProto", stored: Arrays, linears: Iterable[str], activations: Mapping[str, ActivationRange] | None = None
) -> "onnx.ModelProto":
    """The graph that computes with stored tensors; `proto` is without weights, and is not changed.

    Args:
        linears: weights of the layers that compute in int8
        activations: by the name of the weight, the range of the layer's inputs; None: that of each batch
    """
    import onnx

    quantized = onnx.ModelProto()
    quantized.CopyFrom(proto)
    graph, builder, names = quantized.graph, _Builder(proto, stored), {*linears}
    transposed = _find_transposed(graph)
    nodes = list[onnx.NodeProto]()
    for node in graph.node:
        weight = _linear_weight(node, builder.tensors, transposed)
        if weight in names and f"{weight}{SCALE_SUFFIX}" in stored:
            nodes += builder.build_linear(node, weight, None if activations is None else activations[weight])
        elif _is_lookup(node) and node.input[0] in builder.tensors and node.input[0] + SCALE_SUFFIX in stored:
            nodes += builder.build_lookup(node)
        else:
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    nodes = [node for node in nodes if node.output[0] not in transposed or node.output[0] in read]
    for name in builder.tensors:
        if name + SCALE_SUFFIX in stored and any(name in read_names([node]) for node in nodes):
            nodes = [*builder.dequantize(name), *nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    reads = count_reads(graph)
    kept = [tensor for tensor in graph.initializer if tensor.name + SCALE_SUFFIX not in stored and reads[tensor.name]]
    del graph.initializer[:]
    graph.initializer.extend([*kept, *builder.added.values()])
    if all(entry.domain != MICROSOFT for entry in quantized.opset_import):
        quantized.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return quantized


class _Builder:
    """Nodes in place of those of a float graph, and the initializers that they read."""

    def __init__(self, proto: "onnx.ModelProto", stored: Arrays) -> None:
        self.tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.stored = stored
        self.added: dict[str, Any] = {}

    def build_linear(self, node: "onnx.NodeProto", name: str, activation: ActivationRange | None) -> list["onnx.NodeProto"]:
        x, output = node.input[0], node.output[0]
        nodes, bias = list[Any](), list(node.input[2:])
        if name + INPUT_SCALE_SUFFIX in self.stored:
            nodes.append(_make("Mul", [x, self.read(name + INPUT_SCALE_SUFFIX)], f"{output}.smoothed"))
            x = nodes[-1].output[0]
        weight, scale = f"{output}.weight", self.read(name + SCALE_SUFFIX)
        nodes.append(_make("Transpose", [self.read(name)], weight, perm=[1, 0]))
        if activation is None:
            inputs = [x, weight, scale, *(["", *bias] if bias else [])]
            return [*nodes, _make("DynamicQuantizeMatMul", inputs, output, domain=MICROSOFT)]
        step = self.add(f"{output}.step", np.asarray(activation.step, np.float32))
        zero_point = self.add(f"{output}.zero_point", np.asarray(activation.zero_point, np.uint8))
        nodes.append(_make("QuantizeLinear", [x, step, zero_point], f"{output}.quantized"))
        inputs = [nodes[-1].output[0], weight, step, scale, zero_point, *(["", *bias] if bias else [])]
        return [*nodes, _make("MatMulIntegerToFloat", inputs, output, domain=MICROSOFT)]

    def build_lookup(self, node: "onnx.NodeProto") -> list["onnx.NodeProto"]:
        name, ids, output = node.input[0], node.input[1], node.output[0]
        rows, scales = f"{output}.rows", f"{output}.scales"
        last = self.add("last_axis", np.asarray([-1], np.int64))
        nodes = [_make("Gather", [self.read(name), ids], rows), _make("Gather", [self.read(name + SCALE_SUFFIX), ids], scales)]
        nodes += [_make("Unsqueeze", [scales, last], f"{scales}.column")]
        unpacked = self.unpack(name, rows)
        return [*nodes, *unpacked, _make("Mul", [unpacked[-1].output[0], f"{scales}.column"], output)]

    def dequantize(self, name: str) -> list["onnx.NodeProto"]:
        """Nodes that compute the float32 matrix under its own name."""
        last, source, scale = self.add("last_axis", np.asarray([-1], np.int64)), self.read(name), f"{name}.scale_column"
        nodes = [*self.unpack(name, source), _make("Unsqueeze", [self.read(name + SCALE_SUFFIX), last], scale)]
        has_input_scale = name + INPUT_SCALE_SUFFIX in self.stored
        product = f"{name}.product" if has_input_scale else name
        nodes.append(_make("Mul", [nodes[-2].output[0], scale], product))
        if has_input_scale:
            nodes.append(_make("Mul", [product, self.read(name + INPUT_SCALE_SUFFIX)], name))
        return nodes

    def unpack(self, name: str, rows: str) -> list["onnx.NodeProto"]:
        """Nodes from stored integers of some rows to float32, the last of which gives the result."""
        import onnx

        if self.stored[name].dtype == np.int8:
            return [_make("Cast", [rows], f"{rows}.float", to=onnx.TensorProto.FLOAT)]
        mask, four, eight = (
            self.add("low_bits", np.asarray(15, np.uint8)), self.add("four_bits", np.asarray(4, np.uint8)),
            self.add("int4_zero_point", np.asarray(8, np.float32)),
        )  # fmt: skip
        return [
            _make("BitwiseAnd", [rows, mask], f"{rows}.low"),
            _make("BitShift", [rows, four], f"{rows}.high", direction="RIGHT"),
            _make("Concat", [f"{rows}.low", f"{rows}.high"], f"{rows}.int4", axis=-1),
            _make("Cast", [f"{rows}.int4"], f"{rows}.unsigned", to=onnx.TensorProto.FLOAT),
            _make("Sub", [f"{rows}.unsigned", eight], f"{rows}.float"),
        ]

    def read(self, name: str) -> str:
        """The initializer of a stored tensor, as external data. That of a matrix is not called like the matrix of floats."""
        import onnx

        initializer = f"{name}:stored" if name in self.tensors else name
        if initializer not in self.added:
            array = self.stored[name]
            data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = onnx.TensorProto(name=initializer, dims=array.shape, data_type=data_type)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.append(onnx.StringStringEntryProto(key="location", value="model.safetensors"))
            self.added[initializer] = tensor
        return initializer

    def add(self, name: str, array: NDArray[Any]) -> str:
        import onnx

        self.added[name] = onnx.numpy_helper.from_array(array, name)
        return name


def stored_name(initializer: str) -> str:
    """The name in the folder of an initializer that is external data."""
    return initializer.removesuffix(":stored")


def _make(kind: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> "onnx.NodeProto":
    import onnx

    return onnx.helper.make_node(kind, inputs, [output], domain=domain, **attributes)


def _find_transposed(graph: "onnx.GraphProto") -> dict[str, str]:
    """The weight of each value that is the transpose of one."""
    tensors = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 2}
    return {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose" and node.input[0] in tensors}


def _linear_weight(node: "onnx.NodeProto", tensors: Mapping[str, Any], transposed: Mapping[str, str]) -> str | None:
    """The matrix W (outputs, inputs) of x @ W.T + b, of at least MIN_SIZE inputs and outputs; None for other nodes."""
    if node.op_type not in ("Gemm", "MatMul") or node.input[0] in tensors:
        return None
    weight: str | None = transposed.get(node.input[1]) if node.op_type == "MatMul" else node.input[1]
    if weight is None or weight not in tensors or (node.op_type == "Gemm" and not _is_plain_gemm(node, tensors)):
        return None
    tensor = tensors[weight]
    is_large = len(tensor.dims) == 2 and min(tensor.dims) >= MIN_SIZE and tensor.data_type == tensor.FLOAT
    return weight if is_large else None


def _is_plain_gemm(node: "onnx.NodeProto", tensors: Mapping[str, Any]) -> bool:
    values = {
        attribute.name: attribute.i if attribute.name.startswith("trans") else attribute.f for attribute in node.attribute
    }
    has_vector_bias = len(node.input) < 3 or (node.input[2] in tensors and len(tensors[node.input[2]].dims) == 1)
    is_plain = (values.get("transB", 0), values.get("transA", 0)) == (1, 0)
    return is_plain and values.get("alpha", 1.0) == values.get("beta", 1.0) == 1.0 and has_vector_bias


def _is_lookup(node: "onnx.NodeProto") -> bool:
    return node.op_type == "Gather" and all(attribute.i == 0 for attribute in node.attribute if attribute.name == "axis")
