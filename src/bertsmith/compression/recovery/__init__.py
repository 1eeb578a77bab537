"""The run that recovers the score of a model that was made smaller, shared by `prune` and `share`.

- recipe: keys that both stages have
- teacher: losses against the model it was made from
- run: read the model and its examples, train, evaluate both models, publish
- report: units, parameters, speed and scores before and after
"""
