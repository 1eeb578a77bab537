"""Metrics of tasks: scores by name, bootstrap intervals, significance and calibration, in numpy alone."""
