"""Pre-training corpora: a memory-mapped store of token ids, samplers that select sequences, masking and batching."""
