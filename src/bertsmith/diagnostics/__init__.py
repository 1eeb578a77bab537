"""Diagnostics of corpora, training runs and checkpoints (`bertsmith doctor`): findings with causes and fixes."""
