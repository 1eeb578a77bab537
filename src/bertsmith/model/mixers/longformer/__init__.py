"""Longformer (Beltagy et al. 2020): a sliding window around each token, and a few global tokens
that attend to, and are attended by, their whole sequence.

layer.py: the mixer; attention.py: local.py (the window) and global_attention.py (global tokens outside it) in one softmax;
clamped_rope.py: RoPE with the relative positions of global tokens clamped to the window; global_queries.py: the global tokens'
own attention, fused with the projection of queries, keys and values.
"""
