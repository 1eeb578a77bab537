"""Engines: the libraries that compute a model's forward pass (torch, onnxruntime, OpenVINO), behind one interface."""
