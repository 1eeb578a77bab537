"""The dice: the same whoever asks and in whatever order, and as even as dice should be."""

import subprocess
import sys
import zlib

import numpy as np
import pytest

from bertsmith.errors import UserError
from bertsmith.rng import Stream, permutation, randint, random_bits, uniform

MANY = 300_000


def test_a_whole_array_gives_what_its_elements_give_in_any_order():
    epochs, samples = np.arange(3)[:, None], np.arange(7)
    whole = random_bits(5, "masks", epochs, samples)
    assert whole.shape == (3, 7)
    for epoch, sample in [(2, 6), (0, 0), (1, 3), (2, 0), (0, 6)]:
        assert random_bits(5, "masks", epoch, sample) == whole[epoch, sample]
    backwards = random_bits(5, "masks", 1, samples[::-1])
    assert (backwards == whole[1, ::-1]).all()


def test_another_process_draws_the_same():
    code = "from bertsmith.rng import bits; print(int(bits(7, 'order', 3, 2**40)), int(bits(-7, 'order')))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert told == [str(int(random_bits(7, "order", 3, 2**40))), str(int(random_bits(-7, "order")))]


def test_the_type_of_a_counter_does_not_matter():
    kinds = (np.int32, np.uint16, np.int64, np.uint64)
    assert len({int(random_bits(1, "order", kind(9))) for kind in kinds} | {int(random_bits(1, "order", 9))}) == 1


def test_no_draw_warns_or_fails_whatever_its_counter():
    with np.errstate(all="raise"):
        drawn = random_bits(2**64 - 1, "order", np.array([-1, 0, 2**63 - 1]), 2**64 - 1)
    assert len(set(drawn.tolist())) == 3


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
    ids=["seed", "purpose", "epoch", "swapped", "fewer", "more", "high-seed", "highest-seed", "negative-seed"],
)
def test_another_seed_purpose_or_counter_is_another_stream(other):
    here = random_bits(0, "order", 0, np.arange(1000))
    assert (here == other).sum() <= 1  # counters (0, 0) and (0, 0) swapped are the same
    assert abs(np.corrcoef(uniform(here), uniform(other))[0, 1]) < 0.12  # 1000 draws: a deviation of 0.032


def test_seeds_of_64_bits_are_all_different():
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**33, 2**63, 2**64 - 2, -3, -(2**63) + 1]
    assert len({int(random_bits(seed, "order", 0)) for seed in seeds}) == len(seeds)


def test_a_negative_seed_is_the_unsigned_number_of_the_same_bits():
    assert random_bits(-1, "order", 3) == random_bits(2**64 - 1, "order", 3)
    assert random_bits(-(2**63), "order", 3) == random_bits(2**63, "order", 3)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_beyond_64_bits_is_refused_rather_than_folded(seed):
    with pytest.raises(UserError, match=rf"seed = {seed} .*64 bits"):
        random_bits(seed, "order", 0)


@pytest.mark.parametrize("purpose", ["order", "mask swap"])
def test_draws_are_even(purpose):
    counts = np.bincount((uniform(random_bits(11, purpose, 4, np.arange(MANY))) * 256).astype(int), minlength=256)
    chi = ((counts - MANY / 256) ** 2 / (MANY / 256)).sum()
    assert 150 < chi < 380  # 255 degrees of freedom: mean 255, deviation 22.6


def test_each_of_the_64_bits_is_a_fair_coin():
    drawn = random_bits(3, "order", np.arange(MANY))
    ones = np.array([((drawn >> np.uint64(bit)) & np.uint64(1)).sum() for bit in range(64)])
    assert (abs(ones / MANY - 0.5) < 5 * 0.5 / MANY**0.5).all()


def test_pairs_of_neighbours_fill_the_square_evenly():
    """Neighbours in the counter, in the epoch and in the seed: none of them tells of the other."""
    numbers = np.arange(MANY)
    here = randint(random_bits(1, "order", 0, numbers), 16)
    for there in (
        random_bits(1, "order", 0, numbers + 1),
        random_bits(1, "order", 1, numbers),
        random_bits(2, "order", 0, numbers),
    ):
        counts = np.bincount(here * 16 + randint(there, 16), minlength=256)
        assert ((counts - MANY / 256) ** 2 / (MANY / 256)).sum() < 380


def test_uniform_stays_below_one_and_reaches_zero():
    ends = uniform(np.array([0, 2**64 - 1], np.uint64))
    assert ends[0] == 0.0 and ends[1] == 1 - 2.0**-53


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 2**31, 2**52 + 1, 2**53])
def test_below_never_reaches_its_limit(limit):
    highest = np.array([2**64 - 1, 0], np.uint64)
    assert randint(highest, limit).tolist() == [limit - 1, 0]


def test_below_takes_a_limit_for_each():
    limits = np.arange(1, 1001)
    drawn = randint(random_bits(0, "order", np.arange(400)[:, None], np.arange(1000)), limits)
    assert drawn.shape == (400, 1000) and (drawn >= 0).all() and (drawn < limits).all()
    assert (drawn[:, :8].max(0) == limits[:8] - 1).all()


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_shuffled_is_a_permutation(count):
    assert sorted(permutation(count, 0, "order", 1).tolist()) == list(range(count))


def test_shuffles_differ_between_epochs_and_are_even():
    orders = np.array([permutation(4, 0, "order", epoch) for epoch in range(4800)])
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 200) ** 2 / 200).sum() < 55  # 23 degrees of freedom: 55 is passed once in 5000


def test_stream_keys_are_frozen():
    """Their spelling decides what is drawn: one that changes changes every corpus split, mask and batch."""
    keys = sorted(value for name, value in vars(Stream).items() if name.isupper())
    assert zlib.crc32("\n".join(keys).encode()) == 2468205832 and len(set(keys)) == len(keys) == 31
