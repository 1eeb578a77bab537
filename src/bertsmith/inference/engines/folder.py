"""Opening a model folder with an engine: which engines can open it, and which are installed."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from ...artifacts import read_object, verify_if_sealed
from ...errors import UserError, explain_missing_torch
from ...model.adapter import is_adapter
from ...model.folder import list_weight_files, read_arrays, read_config, read_shapes, reads_stored_weights, stores_int8
from ...reading import require_regular
from ...tokenization.tokenizer import Tokenizer
from .base import EMBEDDING_HEAD, LM_HEAD, Backend, Engine, ModelFacts, Precision
from .graph import MODEL_GRAPH, TASK_HEAD, Graph, GraphEngine

if TYPE_CHECKING:
    from .torch import TorchEngine

ONNX_FILES = {
    MODEL_GRAPH: "model.onnx", LM_HEAD: "lm_head.onnx", TASK_HEAD: "task_head.onnx", EMBEDDING_HEAD: "embedding_head.onnx",
}  # fmt: skip
OPENVINO_FILES = {
    MODEL_GRAPH: "openvino_model.xml", LM_HEAD: "openvino_lm_head.xml", TASK_HEAD: "openvino_task_head.xml",
    EMBEDDING_HEAD: "openvino_embedding_head.xml",
}  # fmt: skip
PACKAGES = {"torch": ("torch", "train"), "onnx": ("onnxruntime", "onnx"), "openvino": ("openvino", "openvino")}


def has_weights(folder: Path) -> bool:
    """Whether the weights are in files of their own, as in every checkpoint: graphs beside them are stored without."""
    return all(path.exists() for path in list_weight_files(folder))  # what is no regular file is refused when it is read


def list_backends(folder: Path) -> list[Backend]:
    """The engines that can open a folder, installed or not."""
    has_onnx, has_openvino = ((folder / files[MODEL_GRAPH]).is_file() for files in (ONNX_FILES, OPENVINO_FILES))
    found: dict[Backend, bool] = {"onnx": has_onnx, "openvino": has_openvino or has_onnx, "torch": has_weights(folder)}
    return [backend for backend, is_found in found.items() if is_found]


def is_installed(backend: Backend) -> bool:
    try:
        return find_spec(PACKAGES[backend][0]) is not None
    except (ModuleNotFoundError, ValueError):  # it is hidden, as tests do
        return False


def check_backend(folder: Path, backend: Backend, device: str, precision: Precision) -> None:
    """Raises a UserError if the engine cannot open the folder, is not installed, or does not compute as requested."""
    if backend not in (backends := list_backends(folder)):
        way_out = f"backend={' or '.join(backends)}" if backends else "a folder with weights or a graph"
        if backend != "torch" and "torch" in backends:
            way_out += f", or `bertsmith export model={folder} format={backend}`"
        problem = "weights for torch" if backend == "torch" else "graph that is computed by it"
        raise UserError(f"backend={backend}: {folder} has no {problem}; use {way_out}")
    package, extra = PACKAGES[backend]
    if not is_installed(backend):
        raise UserError(f"backend={backend} needs the package {package}: pip install 'bertsmith[{extra}]'")
    if backend == "torch":
        return
    if device not in ("auto", "cpu"):
        raise UserError(f"backend={backend} computes on the CPU; set device=cpu, or backend=torch for device={device}")
    if backend == "onnx" and precision == "bf16":
        raise UserError("onnxruntime has no bf16 on a CPU; set precision=fp32, or backend=openvino or torch")


class Opened(NamedTuple):
    """What a folder holds, loaded."""

    engine: Engine
    tokenizer: Tokenizer
    card: dict[str, Any]


def open_torch(folder: Path, precision: Precision = "auto", device: str = "cpu") -> Opened:
    """A folder with weights, computed by torch."""
    with explain_missing_torch("backend=torch"):
        from ...device import resolve_device
        from ...model import checkpoint
        from .torch import TorchEngine
    torch_device = resolve_device(device)
    model, tokenizer, card = checkpoint.load(folder)
    return Opened(TorchEngine(model.to(torch_device), precision), tokenizer, card)


def open_graphs(folder: Path, backend: Backend, precision: Precision) -> Opened:
    """A folder with graphs, computed by onnxruntime or OpenVINO in the given precision (fp32 or bf16)."""
    record = read_config(folder)
    with ThreadPoolExecutor(1) as pool:  # the graph is loaded while checksums are computed
        engine = pool.submit(_open_graph_engine, folder, record, backend, precision)
        verify_if_sealed(folder)
        tokenizer, card = Tokenizer.load(folder / "tokenizer.json"), read_object(folder / "card.json")
    return Opened(engine.result(), tokenizer, card)


def _open_graph_engine(folder: Path, record: dict[str, Any], backend: Backend, precision: Precision) -> GraphEngine:
    facts, weights = ModelFacts.from_record(record["model"]), cache(lambda: read_arrays(folder))
    is_separate = has_weights(folder)
    # then the graphs cannot read them as external data
    is_packed = is_separate and ((stores_int8(record, folder) and not reads_stored_weights(record)) or is_adapter(folder))

    def load_graph(name: str) -> Graph:
        path = folder / (OPENVINO_FILES[name] if backend == "openvino" else ONNX_FILES[name])
        if backend == "openvino" and not path.is_file():
            path = folder / ONNX_FILES[name]
        if not path.exists():
            raise UserError(f"{path} is missing; export the model again")
        arrays = weights() if is_packed and path.suffix == ".onnx" else None
        return _load_graph(require_regular(path), backend, precision, arrays)

    def load_torch() -> "TorchEngine":
        engine = open_torch(folder).engine.as_torch()
        assert engine is not None
        return engine

    num_parameters = sum(map(math.prod, read_shapes(folder).values())) if is_separate else None
    has_torch = is_separate and is_installed("torch")
    return GraphEngine(backend, facts, load_graph, num_parameters, load_torch if has_torch else None)


def _load_graph(path: Path, backend: Backend, precision: Precision, weights: dict[str, NDArray[Any]] | None) -> Graph:
    if backend == "openvino":
        from .openvino import OpenvinoGraph

        return OpenvinoGraph(path, precision, weights)
    from .onnx import OnnxGraph

    return OnnxGraph(path, weights)
