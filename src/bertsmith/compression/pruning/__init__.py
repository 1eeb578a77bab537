"""Pruning: heads, neurons, layers, vocabulary and single weights."""
