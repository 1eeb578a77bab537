"""Smaller models: distillation, pruning."""
