"""Text generation: sampling, greedy and beam search over one incremental interface, with a KV cache or a segment memory."""
