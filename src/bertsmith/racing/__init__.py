"""Compare models at equal compute: the same text, the same FLOPs of pre-training, the same tasks.

`run` has the recipe and the scheduler; `entries` one entry per member; `corpora` the tokenized text; `budget` and `flops`
the training steps that a budget allows; `execution` the jobs; `table` and `page` the results.
"""
