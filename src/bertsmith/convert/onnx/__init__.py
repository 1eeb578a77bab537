"""Export of models as ONNX graphs and OpenVINO models, checked against torch.

outputs.py: what a graph computes, under the names that others use; layout.py: padded batches of free size, with attention in
operators that engines fuse; recurrent.py: recurrent layers as operators of ONNX; graph.py: tracing, and the ONNX model;
quantize.py: the same with linear layers in int8.
"""

from .graph import build_graph, build_head_graph

__all__ = ["build_graph", "build_head_graph"]
