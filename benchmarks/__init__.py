"""Ratios against peers, both sides in one run: `python -m benchmarks [NAME ...] [texts=FILES] [vocabulary=vocab.txt]`."""
