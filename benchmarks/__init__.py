"""Ratios against peers, both sides measured in one run: `python -m benchmarks [NAME ...] [texts=FILES] [vocabulary=vocab.txt]`."""
