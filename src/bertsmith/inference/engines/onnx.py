"""Graphs computed by onnxruntime on a CPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from ...cores import count_threads
from ...errors import UserError
from ...reading import read_bytes
from .graph import Graph
from .onnx_weights import MAX_GRAPH_BYTES, check_weights, read_weight_names


class OnnxGraph(Graph):
    """A graph in an onnxruntime session.

    Its threads sleep between calls instead of spinning (onnxruntime issue 13808). Its arena, which is reused from call to call,
    stays as large as the largest batch: no plan of memory is kept for each shape (issue 9313).
    """

    precision = "fp32"  # onnxruntime has no kernels for bf16 on x86

    def __init__(self, path: Path, weights: Mapping[str, NDArray[Any]] | None = None) -> None:
        """weights: the initializers of a graph that is stored without them."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = count_threads()
        options.enable_mem_pattern = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3  # errors
        model = str(path) if weights is None else read_bytes(path, MAX_GRAPH_BYTES)
        if isinstance(model, bytes) and weights is not None:
            names = read_weight_names(model)
            check_weights(model, weights)
            values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(weights[name]) for name in names}
            options.add_external_initializers(list(values), list(values.values()))
            self._weights = values  # the session does not copy them
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library has no base class of its own
            raise UserError(f"{path} cannot be loaded by onnxruntime {onnxruntime.__version__}: {error}") from None
        self.inputs, self.outputs = ([value.name for value in values] for values in
                                     (self._session.get_inputs(), self._session.get_outputs()))  # fmt: skip
        self._run_options = onnxruntime.RunOptions()
        self._run_options.only_execute_path_to_fetches = True

    def __call__(self, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> list[NDArray[Any]]:
        results: list[NDArray[Any]] = self._session.run(list(outputs), dict(feeds), self._run_options)
        return results
