"""The model: token ids -> hidden states -> logits.

Sequences are packed without padding (`packing.Layout`); an `Encoder` is input embeddings and a `Stack` of blocks
(`transformer`), each a mixer and a feed-forward (`sublayers`); a `Model` is an encoder, an optional decoder, and heads.
"""
