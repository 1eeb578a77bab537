"""Slow versions of layers, straight from the papers' formulas."""

import torch


def hash_bucket(x, turns):
    """argmax([xR; -xR]) of one vector."""
    projections = [float((x @ turn).detach()) for turn in turns.T]
    scores = projections + [-projection for projection in projections]
    return scores.index(max(scores))


def find_neighbors(mixer, qk, lengths):
    """For every head and token, the set of its neighbours over all hash rounds."""
    config, neighbors = mixer.config, [[set() for _ in range(qk.shape[1])] for _ in range(4)]
    factors = config.num_buckets if isinstance(config.num_buckets, tuple) else (config.num_buckets,)
    first_tokens = [sum(lengths[:seq]) for seq in range(len(lengths))]
    for head in range(4):
        for hash_round in range(config.num_hashes):
            rotations = mixer.hashes.rotations[head, :, hash_round].split([factor // 2 for factor in factors], -1)
            for start, length in zip(first_tokens, lengths, strict=True):
                is_short = not config.causal and length <= config.bucket_window + 1
                buckets = {}
                for token in range(start, start + length):
                    key = 0 if is_short else tuple(hash_bucket(qk[head, token], part) for part in rotations)
                    buckets.setdefault(key, []).append(token)
                for bucket in buckets.values():
                    for rank, token in enumerate(bucket):
                        nearby = bucket[max(0, rank - config.bucket_window) : rank] + (
                            [] if config.causal else bucket[rank + 1 : rank + 1 + config.bucket_window]
                        )
                        neighbors[head][token] |= set(nearby)
    return neighbors


def rope_by_complex_multiplication(x, positions, theta):
    """x (tokens, heads, head_dim) rotated in float64: its halves are real and imaginary parts."""
    half = x.shape[-1] // 2
    inv_freq = torch.tensor([1 / theta ** (i / half) for i in range(half)], dtype=torch.float64)
    angles = positions.double()[:, None, None] * inv_freq
    rotated = torch.complex(*x.double().chunk(2, -1)) * torch.complex(angles.cos(), angles.sin())
    return torch.cat([rotated.real, rotated.imag], -1)
