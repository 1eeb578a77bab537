"""Metrics, bootstrap confidence intervals, significance tests and calibration (numpy only)."""
