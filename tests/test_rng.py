"""Counter-based random numbers: reproducible in any order and process, uniform, independent."""

import subprocess
import sys
import zlib

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.rng import Stream, permutation, randint, random_bits, uniform

NUM_SAMPLES = 300_000


def test_rng_arrays_equal_elementwise_calls():
    epochs, samples = np.arange(3)[:, None], np.arange(7)
    values = random_bits(5, "masks", epochs, samples)
    assert values.shape == (3, 7)
    for epoch, sample in [(2, 6), (0, 0), (1, 3), (2, 0), (0, 6)]:
        assert random_bits(5, "masks", epoch, sample) == values[epoch, sample]
    backwards = random_bits(5, "masks", 1, samples[::-1])
    assert (backwards == values[1, ::-1]).all()


def test_rng_is_the_same_in_another_process():
    code = "from bertsmith.rng import random_bits; print(int(random_bits(7, 'order', 3, 2**40)), int(random_bits(-7, 'order')))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert printed == [str(int(random_bits(7, "order", 3, 2**40))), str(int(random_bits(-7, "order")))]


def test_rng_does_not_depend_on_the_counter_dtype():
    dtypes = (np.int32, np.uint16, np.int64, np.uint64)
    assert len({int(random_bits(1, "order", dtype(9))) for dtype in dtypes} | {int(random_bits(1, "order", 9))}) == 1


def test_rng_accepts_any_counter_without_warnings():
    with np.errstate(all="raise"):
        values = random_bits(2**64 - 1, "order", np.array([-1, 0, 2**63 - 1]), 2**64 - 1)
    assert len(set(values.tolist())) == 3


@pytest.mark.parametrize(
    "other",
    [
        random_bits(1, "order", 0, np.arange(1000)),
        random_bits(0, "ordre", 0, np.arange(1000)),
        random_bits(0, "order", 1, np.arange(1000)),
        random_bits(0, "order", np.arange(1000), 0),
        random_bits(0, "order", np.arange(1000)),
        random_bits(0, "order", 0, 0, np.arange(1000)),
        random_bits(2**32, "order", 0, np.arange(1000)),
        random_bits(2**63, "order", 0, np.arange(1000)),
        random_bits(-1, "order", 0, np.arange(1000)),
    ],
    ids=["seed", "stream", "epoch", "swapped", "fewer", "more", "high-seed", "highest-seed", "negative-seed"],
)
def test_rng_seed_stream_and_counters_give_independent_values(other):
    values = random_bits(0, "order", 0, np.arange(1000))
    assert (values == other).sum() <= 1  # counters (0, 0) and (0, 0) swapped are the same
    assert abs(np.corrcoef(uniform(values), uniform(other))[0, 1]) < 0.12  # 1000 samples: standard deviation 0.032


def test_rng_64_bit_seeds_are_all_different():
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**33, 2**63, 2**64 - 2, -3, -(2**63) + 1]
    assert len({int(random_bits(seed, "order", 0)) for seed in seeds}) == len(seeds)


def test_rng_negative_seed_equals_its_unsigned_value():
    assert random_bits(-1, "order", 3) == random_bits(2**64 - 1, "order", 3)
    assert random_bits(-(2**63), "order", 3) == random_bits(2**63, "order", 3)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_rng_seed_beyond_64_bits_is_refused(seed):
    with pytest.raises(UserError, match=rf"seed = {seed} .*64 bits"):
        random_bits(seed, "order", 0)


@pytest.mark.parametrize("stream", ["order", "mask swap"])
def test_rng_is_uniform(stream):
    counts = np.bincount((uniform(random_bits(11, stream, 4, np.arange(NUM_SAMPLES))) * 256).astype(int), minlength=256)
    chi = ((counts - NUM_SAMPLES / 256) ** 2 / (NUM_SAMPLES / 256)).sum()
    assert 150 < chi < 380  # 255 degrees of freedom: mean 255, standard deviation 22.6


def test_rng_every_bit_is_fair():
    values = random_bits(3, "order", np.arange(NUM_SAMPLES))
    ones = np.array([((values >> np.uint64(bit)) & np.uint64(1)).sum() for bit in range(64)])
    assert (abs(ones / NUM_SAMPLES - 0.5) < 5 * 0.5 / NUM_SAMPLES**0.5).all()


def test_rng_neighbouring_keys_are_independent():
    """Chi-squared test of pairs of values with neighbouring counters, epochs and seeds."""
    counters = np.arange(NUM_SAMPLES)
    values = randint(random_bits(1, "order", 0, counters), 16)
    for neighbours in (
        random_bits(1, "order", 0, counters + 1),
        random_bits(1, "order", 1, counters),
        random_bits(2, "order", 0, counters),
    ):
        counts = np.bincount(values * 16 + randint(neighbours, 16), minlength=256)
        assert ((counts - NUM_SAMPLES / 256) ** 2 / (NUM_SAMPLES / 256)).sum() < 380


def test_rng_uniform_is_in_the_half_open_unit_interval():
    extremes = uniform(np.array([0, 2**64 - 1], np.uint64))
    assert extremes[0] == 0.0 and extremes[1] == 1 - 2.0**-53


@pytest.mark.parametrize("high", [1, 2, 3, 7, 2**31, 2**52 + 1, 2**53])
def test_rng_randint_is_below_high(high):
    bits = np.array([2**64 - 1, 0], np.uint64)
    assert randint(bits, high).tolist() == [high - 1, 0]


def test_rng_randint_with_an_array_of_bounds():
    highs = np.arange(1, 1001)
    values = randint(random_bits(0, "order", np.arange(400)[:, None], np.arange(1000)), highs)
    assert values.shape == (400, 1000) and (values >= 0).all() and (values < highs).all()
    assert (values[:, :8].max(0) == highs[:8] - 1).all()


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_rng_permutation(count):
    assert sorted(permutation(count, 0, "order", 1).tolist()) == list(range(count))


def test_rng_permutations_of_epochs_are_uniform():
    orders = np.array([permutation(4, 0, "order", epoch) for epoch in range(4800)])
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 200) ** 2 / 200).sum() < 55  # 23 degrees of freedom: above 55 once in 5000


def test_rng_stream_keys_are_frozen():
    """Their spelling decides the values: a changed key would change every corpus split, mask and batch."""
    keys = sorted(value for name, value in vars(Stream).items() if name.isupper())
    assert zlib.crc32("\n".join(keys).encode()) == 1550519814 and len(set(keys)) == len(keys) == 35
