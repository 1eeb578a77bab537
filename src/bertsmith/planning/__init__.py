"""Estimates of a run's cost before it starts: parameters, memory, time and disk."""
