"""`Candidates`: quantized forms of one model, which differ in the weights that stay in float32."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...config import to_dict
from ...convert.onnx import build_graph, build_head_graph
from ...convert.onnx.external_data import find_weights, set_external_data
from ...convert.onnx.folder import write_checkpoint
from ...convert.onnx.outputs import head_graphs
from ...convert.onnx.readme import render_readme
from ...inference.engines.base import ModelFacts
from ...inference.engines.folder import ONNX_FILES
from ...inference.engines.graph import MODEL_GRAPH, GraphEngine
from ...inference.engines.onnx import OnnxGraph
from ...model.model import Model
from ...tasks import Task
from ...tokenization.tokenizer import Tokenizer
from ...writing import write_atomic
from .calibration import Session, open_session
from .graph import Linear, find_linears, find_tables, quantize_graph
from .weights import ActivationRange, Arrays, Floats, TableBits, quantize_weights

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Quantized:
    """The tensors that a folder stores, and its graphs without weights, by name."""

    stored: Arrays
    graphs: dict[str, "onnx.ModelProto"]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.stored.values())

    def open(self) -> Session:
        """The main graph in onnxruntime."""
        return open_session(self.graphs[MODEL_GRAPH], self.stored)

    @contextmanager
    def open_engine(self, model: Model) -> Iterator[GraphEngine]:
        """The model of these graphs in onnxruntime, as from its folder."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for graph, proto in self.graphs.items():
                write_atomic(folder / ONNX_FILES[graph], proto.SerializeToString())
            arrays = {**self.stored, **{f"{key}:stored": value for key, value in self.stored.items()}}
            facts = ModelFacts.from_record(to_dict(model.config))
            yield GraphEngine("onnx", facts, lambda graph: OnnxGraph(folder / ONNX_FILES[graph], arrays))

    def write(
        self, folder: Path, name: str, model: Model, task: Task | None, tokenizer: Tokenizer, card: dict[str, Any],
        record: dict[str, Any],
    ) -> None:  # fmt: skip
        """A checkpoint folder with integers in model.safetensors, and graphs that read them there."""
        tensors = {key: torch.from_numpy(array) for key, array in self.stored.items()}
        write_checkpoint(folder, model, tokenizer, card, record, task, tensors)
        places = find_weights(folder)
        places |= {f"{key}:stored": place for key, place in places.items()}
        for graph, proto in self.graphs.items():
            set_external_data(proto, places)
            write_atomic(folder / ONNX_FILES[graph], proto.SerializeToString())
        write_atomic(folder / "README.md", render_readme(name, model, task, "onnx", "quantize").encode())


@dataclass(frozen=True)
class FloatModel:
    """A model with its graphs in float32."""

    model: Model
    task: Task | None

    @cached_property
    def weights(self) -> Arrays:
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.model.state_dict().items()}

    @cached_property
    def graphs(self) -> "dict[str, onnx.ModelProto]":
        heads = {
            head: build_head_graph(self.model, head, self.task, weights=False) for head in head_graphs(self.model, self.task)
        }
        return {MODEL_GRAPH: build_graph(self.model, self.task, weights=False), **heads}

    @property
    def graph(self) -> "onnx.ModelProto":
        return self.graphs[MODEL_GRAPH]

    @cached_property
    def linears(self) -> list[Linear]:
        return find_linears(self.graph)

    @cached_property
    def tables(self) -> list[str]:
        return find_tables(self.graph)

    def as_quantized(self) -> Quantized:
        """The same interface for float32."""
        return Quantized(self.weights, self.graphs)


@dataclass(frozen=True)
class Candidates:
    """How the weights of a model are quantized.

    input_scales: of each linear layer; activations: ranges of their inputs, None if they are those of each batch.
    """

    source: FloatModel
    input_scales: Mapping[str, Floats]
    activations: Mapping[str, ActivationRange] | None
    table_bits: TableBits

    @property
    def names(self) -> list[str]:
        """The weights whose quantization changes what is computed: linear layers and tables."""
        tables = self.source.tables if self.table_bits != 32 else []
        return [*dict.fromkeys([*tables, *(layer.weight for layer in self.source.linears)])]

    def build(self, float_names: frozenset[str]) -> Quantized:
        """The quantized model, but for weights that stay in float32."""
        source = self.source
        tables: dict[str, TableBits] = dict.fromkeys(source.tables, self.table_bits)
        stored = quantize_weights(source.weights, self.input_scales, tables, float_names)
        linears = [layer.weight for layer in source.linears if layer.weight not in float_names]
        graphs = {
            name: quantize_graph(proto, stored, linears if name == MODEL_GRAPH else (), self.activations)
            for name, proto in source.graphs.items()
        }
        return Quantized(stored, graphs)

    def open_with(self, name: str) -> Session:
        """The graph in which only this weight is quantized."""
        others = frozenset(self.source.weights) - {name}
        stored = quantize_weights(
            self.source.weights, self.input_scales, dict.fromkeys(self.source.tables, self.table_bits), others
        )
        return open_session(quantize_graph(self.source.graph, stored, [name], self.activations), stored)
