"""Counter-based random numbers: the only source of randomness in data, keyed by (seed, stream, epoch, sample, ...).

There is no state to advance: each value is a hash of its key and counters (the finaliser of SplitMix64, Steele et al.
2014, a bijection that passes BigCrush), so any value can be computed at any time, in any order, by any process,
vectorised over arrays of counters.
"""

import zlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import UserError

RandomBits = NDArray[np.uint64]


class Stream:
    """Keys of the random streams. A key is hashed into every value of its stream, so its spelling decides the values:
    never change one, whatever its wording."""

    VALIDATION_SPLIT = "held out"  # documents held out for evaluation
    DOCUMENT_ORDER = "document order"
    SAMPLE_ORDER = "sample order"  # order of samples in an epoch
    EXAMPLE_ORDER = "examples"  # order of fine-tuning examples
    WINDOW_OFFSET = "windows"  # where a document's first window is cut
    PAIR_IS_RANDOM = "pairs away"  # NSP: random second segment; SOP: swapped segments
    PAIR_SPLIT = "pairs middle"  # where segment A ends
    PAIR_SHORT = "pairs brief"  # whether the target length is shortened
    PAIR_TARGET_LENGTH = "pairs target"
    PAIR_DOCUMENT = "pairs other"  # document of a random second segment; the attempt's number follows
    PAIR_START = "pairs start"  # first sentence of a random second segment
    TRUNCATE_A = "front a"  # truncation from front or back
    TRUNCATE_B = "front b"
    TRUNCATE_MORE = "more coins"
    MASK_CORRUPTION = "mask fate"  # 80/10/10
    MASK_REPLACEMENT = "mask swap"  # the random token of the 10 %
    MASK_ORDER = "mask order"
    MASK_LAST = "mask last"  # whether the last word over the quota is masked
    MASK_SPAN_START = "mask place"
    MASK_SPAN_LENGTH = "mask size"
    MASK_SPAN_LAST = "mask more"
    MASK_SINGLE_TOKENS = "mask singly"  # samples that are masked by token instead of word
    COOCCURRENCE_BLOCKS = "blocks of counts"
    GLOVE_SHARDS = "parts of counts"
    GLOVE_PAIRS = "pairs"
    WORD2VEC_WINDOWS = "neighbours"  # subsampling and window sizes
    WORD2VEC_NEGATIVES = "noise"
    GENERATION = "writing"  # sampled tokens
    GENERATION_CHUNK = "chunks of a file to continue"  # seed of each chunk of rows after the first
    BOOTSTRAP = "bootstrap"
    MODULE_REPLACING = "module replacing"  # which modules of the teacher the student's layers stand in for
    AUGMENTATION = "augmentation"  # which words of a training example are replaced, and by which candidate
    PSEUDO_PERPLEXITY = "alone"  # which sentences are scored
    SENTENCE_NEGATIVES = "hard negatives of neighboring sentences"
    SHUFFLED_WORDS = "stirred"  # diagnostics: words in another order


_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def random_bits(seed: int, stream: str, *counters: ArrayLike) -> RandomBits:
    """64 random bits (uint64) for each element of the counters, broadcast together; a pure function of its arguments.

    A seed is any 64-bit integer, signed or unsigned; -1 is the same as 2**64 - 1.
    """
    if not -(2**63) <= seed < 2**64:
        raise UserError(f"seed = {seed} does not fit into 64 bits; give an integer from {-(2**63)} to {2**64 - 1}")
    with np.errstate(over="ignore"):
        state: RandomBits = _splitmix64(np.asarray(seed % 2**64, np.uint64) + _GOLDEN_GAMMA)
        for counter in (zlib.crc32(stream.encode()), *counters):
            state = _splitmix64(state ^ _splitmix64(np.asarray(counter).astype(np.uint64) * _GOLDEN_GAMMA + _GOLDEN_GAMMA))
    return state


def uniform(bits: RandomBits) -> NDArray[np.float64]:
    """Uniform float64 in [0, 1), from the upper 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def randint(bits: RandomBits, high: ArrayLike) -> NDArray[np.int64]:
    """Uniform integers in [0, high)."""
    return (uniform(bits) * np.asarray(high)).astype(np.int64)


def permutation(n: int, seed: int, stream: str, *counters: int) -> NDArray[np.int64]:
    """A random permutation of 0..n-1."""
    return np.argsort(random_bits(seed, stream, *counters, np.arange(n)), kind="stable")


def _splitmix64(x: RandomBits) -> RandomBits:
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
        return x ^ (x >> np.uint64(31))
