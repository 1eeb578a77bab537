"""Graphs without weights in the folders of the shipped models: they answer through onnxruntime without torch.

`python -m bertsmith.convert.onnx.shipped FOLDER...` writes them, some 100 kB beside the weights, and the manifest.
"""

import sys
from pathlib import Path

from ...artifacts import write_manifest
from ...errors import UserError
from ...inference.engines.folder import ONNX_FILES
from ...inference.engines.graph import MODEL_GRAPH
from ...model import checkpoint
from ...model.folder import LM_HEAD
from ...writing import write_atomic
from .graph import build_graph, build_head_graph


def write_graphs(folder: Path) -> None:
    """Write the graph of a pre-trained model and that of its language-model head beside its weights."""
    model = checkpoint.load(folder)[0]
    if "task" in checkpoint.read_config(folder):
        raise UserError(f"{folder} is a fine-tuned model; export it: bertsmith export model={folder} format=onnx")
    write_atomic(folder / ONNX_FILES[MODEL_GRAPH], build_graph(model, weights=False).SerializeToString())
    if LM_HEAD in model.heads:
        graph = build_head_graph(model, LM_HEAD, weights=False)
        write_atomic(folder / ONNX_FILES[LM_HEAD], graph.SerializeToString())
    write_manifest(folder)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_graphs(Path(name))
