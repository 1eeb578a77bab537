"""Reformer (Kitaev et al. 2020): LSH attention, the published chunked form, and reversible blocks.

layer.py: the mixer; lsh.py: hashing and attention within buckets; chunked.py: the published form over sorted chunks;
reversible.py: reversible blocks; bucket_stats.py: how much of the full attention the buckets cover.
"""
