"""An ALBERT-shaped model from a trained one: layers that share weights, and factorized embeddings (Lan et al. 2020).

- layers: one block for a group of layers
- embeddings: truncated SVD of the token table
- recipe, run: the stage `share`
"""
