"""Evaluation of fine-tuned models: metrics, confidence intervals, significance tests, slices, calibration, error analysis."""
