"""Knowledge distillation: a small student learns from the outputs and inner states of a teacher.

- losses: soft labels, hidden states, attention scores, relations, as functions of tensors
- recipe, layers, student, teacher: what `distill` reads, which layers match, and the models it trains
- states, objective: what a forward pass records, and the objective that the trainer minimizes
- run: the general stage (on a corpus) and the task stage (on labelled examples)
"""
