"""Benchmarks against other libraries, both measured in one run: `python -m benchmarks --help` lists them and their options."""
