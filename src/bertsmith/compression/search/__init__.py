"""The search over the stack of compression: distill, prune, quantize and export; every artifact measured, the smallest chosen.

- recipe: what `compress` reads
- candidates: the models that are trained, and the artifacts that are exported from them
- measure: size, memory, latency and throughput of an artifact, in a process of its own
- front: the measured artifacts, which of them pass the gate, which are on the Pareto front, which is chosen
- page: the front as an HTML page with plots
- run: train, export, measure, choose
"""
