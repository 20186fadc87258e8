"""windows: the same tokens as reading one window after the other, across shards and at the end."""

import numpy as np
import pytest

from bert_jax.data.windows import MemorySplit, Windows


class ShardedSplit(MemorySplit):
    """Counts reads; in several shards."""

    shards = ()

    @property
    def shard_offsets(self):
        return np.array([0, *self.shards, self.num_tokens], np.int64)


def make(shards, num_tokens=100):
    split = ShardedSplit(
        np.arange(num_tokens, dtype=np.uint16),
        (np.arange(num_tokens) % 4).astype(np.uint8),
        np.array([0, num_tokens], np.int64),
    )
    object.__setattr__(split, "shards", shards)
    return split


@pytest.mark.parametrize("shards", [(), (50,), (1, 2, 3), (10, 40, 41, 99)])
@pytest.mark.parametrize("width", [1, 2, 9, 60, 100, 130])
def test_windows_equal_single_reads(shards, width):
    split = make(shards)
    starts = np.sort(np.random.default_rng(width).integers(0, 100, 300))
    tokens = Windows(split).tokens(starts, width)
    flags = Windows(split).flags(starts, width)
    assert tokens.dtype == np.uint16 and flags.dtype == np.uint8
    for start, window, marks in zip(starts, tokens, flags, strict=True):
        inside = min(width, 100 - start)
        assert window[:inside].tolist() == list(range(start, start + inside))
        assert marks[:inside].tolist() == [i % 4 for i in range(start, start + inside)]


def test_no_windows():
    assert Windows(make(())).tokens(np.zeros(0, np.int64), 5).shape == (0, 5)
