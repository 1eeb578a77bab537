"""What a fine-tuning run is assembled from: recipe, examples, frozen layers, the decoder of seq2seq
models, several seeds; `suite` runs many of them."""
