"""Smaller models: pruning."""
