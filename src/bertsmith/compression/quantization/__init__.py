"""Quantization: linear layers that compute in int8, and embedding tables of 8 or 4 bits.

- recipe: keys of `quantize`
- calibration: sequences on which ranges of activations are measured, and these ranges
- weights: integers and scales of the matrices of a model
- graph: the ONNX graph that computes with them
- fake_quantize, training: quantization-aware training
- quality: how far the quantized model is from the original one; the sensitivity of each layer
- run: quantize, keep the layers that hurt in float32, compare with the gate, publish
"""
