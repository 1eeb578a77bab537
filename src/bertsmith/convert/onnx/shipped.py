"""Graphs without weights in the folders of the shipped models: they answer through onnxruntime without torch.

`python -m bertsmith.convert.onnx.shipped FOLDER...` writes them, some 100 kB beside the weights, and the manifest.
"""

import sys
from pathlib import Path

from ...artifacts import write_manifest
from ...config import from_dict
from ...errors import UserError
from ...inference.engines.folder import ONNX_FILES
from ...inference.engines.graph import MODEL_GRAPH
from ...model import checkpoint
from ...model.folder import EMBEDDING_HEAD, LM_HEAD, read_config
from ...tasks import TaskConfig
from ...writing import write_atomic
from .graph import build_graph, build_head_graph


def write_graphs(folder: Path) -> None:
    """Write the graph of a pre-trained or sentence-embedding model, and those of its language-model head or dense layers."""
    model, config = checkpoint.load(folder)[0], read_config(folder)
    task = from_dict(TaskConfig, config["task"], str(folder / "config.json")) if "task" in config else None  # type: ignore[arg-type]
    if task is not None and task.head_type != "embedding":
        raise UserError(f"{folder} is a fine-tuned model; export it: bertsmith export model={folder} format=onnx")
    write_atomic(folder / ONNX_FILES[MODEL_GRAPH], build_graph(model, task, weights=False).SerializeToString())
    for head in model.heads.keys() & {LM_HEAD, EMBEDDING_HEAD}:
        graph = build_head_graph(model, head, task, weights=False)
        write_atomic(folder / ONNX_FILES[head], graph.SerializeToString())
    write_manifest(folder)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_graphs(Path(name))
