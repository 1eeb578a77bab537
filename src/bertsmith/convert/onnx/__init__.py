"""Export of models as ONNX graphs and OpenVINO models, checked against torch.

outputs.py: what a graph computes, under the names that others use; layout.py: padded batches of free size, with attention in
operators that engines fuse; recurrent.py: recurrent layers as operators of ONNX; translations.py: operators that torch.onnx
lacks; graph.py: tracing, and the ONNX model; support.py: what has no graph, and why; check.py: comparison with torch;
external_data.py: weights in safetensors; folder.py and readme.py: the exported folder; quantize.py: int8 forms of a graph.
"""

from .graph import build_graph, build_head_graph

__all__ = ["build_graph", "build_head_graph"]
