"""Graphs computed by OpenVINO on a CPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import openvino
from numpy.typing import NDArray

from ...cores import count_threads
from ...errors import UserError
from ...reading import read_bytes
from .graph import Graph
from .onnx_weights import MAX_GRAPH_BYTES, insert_weights

PRECISIONS = {"fp32": "f32", "bf16": "bf16"}


class OpenvinoGraph(Graph):
    """A compiled model of OpenVINO, with an inference request for each thread that calls it at once."""

    def __init__(self, path: Path, precision: str, weights: Mapping[str, NDArray[Any]] | None = None) -> None:
        """weights: the initializers of an ONNX graph that is stored without them."""
        self.precision = precision
        core = openvino.Core()
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
                  "INFERENCE_NUM_THREADS": count_threads()}  # fmt: skip
        try:
            model = path if weights is None else insert_weights(read_bytes(path, MAX_GRAPH_BYTES), weights)
            self._compiled = core.compile_model(core.read_model(model), "CPU", config)
        except RuntimeError as error:
            raise UserError(f"{path} cannot be loaded by OpenVINO {openvino.__version__}: {error}") from None
        self.inputs, self.outputs = ([port.any_name for port in ports] for ports in
                                     (self._compiled.inputs, self._compiled.outputs))  # fmt: skip
        self._idle: SimpleQueue[Any] = SimpleQueue()

    def __call__(self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        try:
            request = self._idle.get_nowait()
        except Empty:
            request = self._compiled.create_infer_request()
        try:
            request.infer(dict(feeds), share_inputs=True)  # they are not copied: nobody changes them meanwhile
            return [request.get_tensor(name).data.copy() for name in outputs]
        finally:
            self._idle.put(request)


def has_bf16() -> bool:
    """Whether OpenVINO computes in bf16 on this CPU."""
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
