"""Ids to hidden states to scores: packed layout, mixers, stacks, heads."""
