"""Inference: `Predictor` (what `bertsmith.load` returns), mask filling, text generation, and resumable output files."""
