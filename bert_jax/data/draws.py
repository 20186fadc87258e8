"""Random numbers by their address, so that any of them can be had without those before it.

A number is a function of (seed, copy, stream, index): output number ``index`` of a splitmix64
generator (Steele, Lea and Flood 2014) whose start is a hash of the rest. So what is drawn for one
sentence of a corpus does not depend on how many numbers the sentences before it took.
"""

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from bert_jax.data.order import GOLDEN, mix

_DOMAIN = np.uint64(0x7061697273)  # "pairs": unrelated to the keys of ``order`` for the same seed
_STREAMS = 64


class Draws:
    """The random numbers of one copy.

    Args:
        seed: In ``[0, 2**63)``.
        copy: From 0.

    Raises:
        ValueError: If the seed is outside its range.
    """

    def __init__(self, seed: int, copy: int):
        if not 0 <= seed < 2**63:
            raise ValueError(f"The data seed must be in [0, 2**63); got {seed}.")
        base = mix(mix(np.array([seed], np.uint64) + GOLDEN) + _DOMAIN)
        self._base = mix(base + np.uint64(copy))

    def bits(
        self, stream: int, index: Int64[np.ndarray, " n"], word: int = 0
    ) -> UInt64[np.ndarray, " n"]:
        """64 random bits for each index.

        Args:
            stream: In ``[0, 64)``; streams are unrelated.
            index: Addresses in the stream, from 0.
            word: Which 64 bits of an index that needs more of them.
        """
        key = mix(self._base + np.array([1 + stream + _STREAMS * word], np.uint64) * GOLDEN)
        return mix(key + index.astype(np.uint64) * GOLDEN)

    def uniform(self, stream: int, index: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
        """A number in [0, 1) for each index, a multiple of 2**-53."""
        return (self.bits(stream, index) >> np.uint64(11)) * 2.0**-53

    def below(
        self, stream: int, index: Int64[np.ndarray, " n"], limit: int | Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """A whole number in ``[0, limit)`` for each index; 0 where the limit is 0.

        Each comes with probability 1/limit, to a relative ``limit / 2**53``.
        """
        return (self.uniform(stream, index) * limit).astype(np.int64)

    def heads(
        self, stream: int, index: Int64[np.ndarray, " n"], flips: Int64[np.ndarray, " n"]
    ) -> Int64[np.ndarray, " n"]:
        """Heads among ``flips`` tosses of a fair coin, for each index.

        Toss ``i`` is bit ``63 - i % 64`` of word ``i // 64``, so more tosses have the first in
        common with fewer.
        """
        total = np.zeros(len(index), np.int64)
        word, at = 0, np.flatnonzero(flips > 0)
        while at.size:
            unused = 64 - np.minimum(flips[at] - 64 * word, 64)
            tosses = self.bits(stream, index[at], word) >> unused.astype(np.uint64)
            total[at] += np.bitwise_count(tosses)
            word += 1
            at = at[flips[at] > 64 * word]
        return total
