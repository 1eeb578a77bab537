"""Pre-training: the recipe and its model, data and initialization (`setup`), the run (`run`), word vectors (`word_vectors`)."""
