"""Trained models at work: loading a folder, batching texts, answers, masks filled and text generated."""
