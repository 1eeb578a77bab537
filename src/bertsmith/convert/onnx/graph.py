"""Tracing of a model into an ONNX graph whose initializers have the names of the model's state dict.

The graph depends on the config alone, never on the values of the weights: these are inputs while it is optimized, and become
initializers afterwards. So one graph serves every checkpoint of a config, and may be stored without weights: onnxruntime takes
them from `SessionOptions.add_external_initializers`, or reads them from a safetensors file as external data.
"""

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...model.checkpoint import WEIGHTS_FILE
from ...model.mixers.adaptive_span import AdaptiveSpanAttention
from ...model.model import Model
from ...model.positions import RotaryEmbedding
from ...tasks import Task
from .outputs import GraphModule, HeadModule
from .recurrent import use_graph_layers
from .translations import translation_table

if TYPE_CHECKING:
    import onnx

OPSET_VERSION = 20  # the first with Gelu; onnxruntime runs it from 1.17 on
# Of the traced inputs; the graph takes any. So many tokens that nothing that a mixer divides them into is of size 1, which a
# graph would have as a constant.
EXAMPLE_LENGTH, EXAMPLE_TOKENS, EXAMPLE_ROWS = 37, 1000, 2


def build_graph(model: Model, task: Task | None = None, weights: bool = True) -> "onnx.ModelProto":
    """The graph of a model, with the inputs and outputs of `outputs.py`; raises UserError for a model that has none.

    Args:
        task: whose head, pooling and normalization the outputs are; None for a pre-trained model. Logits are not divided by
            its temperature, which `Task.decode` does
        weights: include them; without, the initializers are external data in `model.safetensors` with neither offset nor
            length, to be given to onnxruntime by `add_external_initializers`

    Example:
        >>> onnx.save(build_graph(model, task), "model.onnx")
    """
    module = GraphModule(_traceable_copy(model), task).eval()
    batch, length = torch.export.Dim("batch"), torch.export.Dim("sequence", max=model.config.encoder.max_position_embeddings)
    example_length = min(EXAMPLE_LENGTH, model.config.encoder.max_position_embeddings)
    shape = 2 * (EXAMPLE_TOKENS // (2 * example_length)), example_length
    arguments = tuple(torch.ones(shape, dtype=torch.int64) for _ in module.input_names)
    proto = _trace(module, arguments, {0: 2 * torch.export.Dim("pairs") if module.reads_pairs else batch, 1: length})
    return add_weights(proto, model) if weights else proto


def build_head_graph(model: Model, head: str, task: Task | None = None, weights: bool = True) -> "onnx.ModelProto":
    """The graph of one head: rows of hidden states (`lm`) or of pooled tokens (`task`) -> logits; see `HeadModule`."""
    module = HeadModule(_traceable_copy(model), head, task).eval()
    proto = _trace(module, (torch.ones(EXAMPLE_ROWS, module.input_size),), {0: torch.export.Dim("rows")})
    return add_weights(proto, model) if weights else proto


def add_weights(proto: "onnx.ModelProto", model: Model) -> "onnx.ModelProto":
    """A copy of the graph that has the model's weights in place of external data."""
    import onnx

    weights, filled = model.state_dict(), onnx.ModelProto()
    filled.CopyFrom(proto)
    for tensor in filled.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name].cpu().numpy(), tensor.name))
    return filled


def weight_names(proto: "onnx.ModelProto") -> list[str]:
    """Names, in the state dict, of the weights that a graph reads."""
    return [tensor.name for tensor in proto.graph.initializer if tensor.data_location == tensor.EXTERNAL]


def _trace(module: GraphModule | HeadModule, arguments: tuple[Tensor, ...], sizes: dict[int, Any]) -> "onnx.ModelProto":
    """The graph of a module without weights; `sizes`: the free dimensions of each argument."""
    import onnx_ir as ir
    from onnxscript import optimizer

    with torch.no_grad(), _quiet():
        output_names = list(module(*(argument[:2, :1] if len(sizes) == 2 else argument for argument in arguments)))
        program: Any = torch.onnx.export(
            module, arguments, dynamo=True, input_names=module.input_names, output_names=output_names,
            dynamic_shapes=(sizes,) * len(arguments), opset_version=OPSET_VERSION, optimize=False, verbose=False,
            custom_translation_table=translation_table(),
        )  # fmt: skip
    weights, graph = module.model.state_dict(), program.model.graph
    for name, value in list(graph.initializers.items()):
        if (weight := name.removeprefix("model.")) in weights:
            del graph.initializers[name]
            value.name, value.const_value = weight, None
            graph.inputs.append(value)
    with _quiet():
        optimizer.optimize_ir(program.model)
    proto: onnx.ModelProto = ir.serde.serialize_model(program.model)
    return _inputs_to_initializers(proto, weights)


def _inputs_to_initializers(proto: "onnx.ModelProto", weights: dict[str, Tensor]) -> "onnx.ModelProto":
    """Weights that were inputs as initializers of external data; those that no node reads are dropped."""
    import onnx

    inputs = list(proto.graph.input)
    read = {name for node in proto.graph.node for name in node.input} | _names_in_subgraphs(proto.graph.node)
    del proto.graph.input[:]
    proto.graph.input.extend(value for value in inputs if value.name not in weights)
    location = onnx.StringStringEntryProto(key="location", value=WEIGHTS_FILE)
    for value in inputs:
        if value.name in weights and value.name in read:
            shape, dtype = weights[value.name].shape, value.type.tensor_type.elem_type
            tensor = onnx.TensorProto(name=value.name, dims=shape, data_type=dtype, external_data=[location])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            proto.graph.initializer.append(tensor)
    for node in proto.graph.node:  # traces of our source lines
        del node.metadata_props[:]
        node.doc_string = ""
    for entries in (proto.graph.metadata_props, proto.metadata_props, proto.graph.value_info):
        del entries[:]
    return proto


def _names_in_subgraphs(nodes: Iterable[Any]) -> set[str]:
    """Names that the bodies of Loop, Scan and If read."""
    graphs = [attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g")]
    return {name for graph in graphs for node in graph.node for name in node.input}.union(
        *(_names_in_subgraphs(graph.node) for graph in graphs)
    )


def _traceable_copy(model: Model) -> Model:
    """The model with the same weights, and tables computed that depend on the values of weights or on the length."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    traceable = copy.deepcopy(model, shared).eval()
    use_graph_layers(traceable)
    tables = dict[tuple[float, int], Tensor]()  # one for all layers
    for module in traceable.modules():
        if isinstance(module, RotaryEmbedding):
            table = module.cos_sin(model.config.encoder.max_position_embeddings, torch.device("cpu"))
            module.cos_sin_cache = tables.setdefault((module.theta, module.head_dim), table)
        elif isinstance(module, AdaptiveSpanAttention):
            module.trim()
    return traceable


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings on packages that it does without."""
    import logging

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
