"""Longformer (Beltagy et al. 2020): a sliding window around each token, and a few global tokens
that attend to, and are attended by, their whole sequence.

layer is the mixer; attention joins local.py (the window) and global_attention.py (global tokens beyond it) in one softmax;
clamped_rope.py keeps rotary positions of far global tokens at the window's edge; global_queries.py computes the global tokens'
own rows."""
