"""Reformer (Kitaev et al. 2020): LSH attention, the published chunked form, and reversible blocks.

layer is the mixer over lsh.py (hashing and attention within buckets); chunked.py is the published form over sorted chunks;
reversible.py holds the reversible stack; bucket_stats.py counts whom the hashes bring together."""
